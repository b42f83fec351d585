"""Commands of balancing and placement, each an entry point of the group `statechannel.commands`."""
