"""The balancer, live: what runs in every broker process beside the channel member, and what it writes down."""
