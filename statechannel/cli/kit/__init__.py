"""What commands share: options, connections, output, requests to brokers, and errors for people."""
