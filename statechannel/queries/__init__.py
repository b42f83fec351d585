"""Questions about a channel, as rows: name, parameters, document; commands and the admin API come from them."""
