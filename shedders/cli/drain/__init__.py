"""`statechannel drain`, `uncordon` and `rolling-restart`."""
