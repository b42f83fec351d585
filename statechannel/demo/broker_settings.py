"""What the brokers of the demo are told, as a file that its reader can look at and use again."""

SETTINGS = """\
# Settings of the demo's brokers. Load is made up: a few topics are heavy, most are light, all follow a wave.
# The balancer looks every two seconds instead of every minute, and waits for less than it would in production.

[extensions.balancer]
source = "simulated"
splitting = false
interval_s = 2
trigger_gap_s = 0.5
settle_s = 3

[extensions.balancer.budget]
load_percent = 100

[extensions.balancer.load]
measure_interval_s = 0.5
sample_interval_s = 0.5
tick_s = 0.2
settle_s = 0.5
top_interval_s = 0.5
history = 0.5
report_threshold_percent = 2

[extensions.balancer.strategies.shedding.transfer]
hit_threshold = 1
cool_down_s = 2
grace_s = 5
target_std = 0.1
"""
