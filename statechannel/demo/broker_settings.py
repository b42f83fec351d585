"""Settings of the demo's brokers, as a file that the reader can inspect and reuse."""

_BALANCER = """\
[extensions.balancer]
source = "simulated"
splitting = false
interval_s = 2
trigger_gap_s = 0.5
settle_s = 3

"""
_LOAD = """\
[extensions.balancer.load]
measure_interval_s = 0.5
sample_interval_s = 0.5
tick_s = 0.2
settle_s = 0.5
top_interval_s = 0.5
history = 0.5
report_threshold_percent = 2

"""
"""Settings shared by both demos; without braces, as one file is a format string."""

SETTINGS = (
    """\
# Settings of the demo's brokers. Load is simulated: a few topics are heavy, most are light, all follow a wave.
# The balancer runs every two seconds instead of every minute, with shorter waits than in production.

"""
    + _BALANCER
    + """\
[extensions.balancer.budget]
load_percent = 100

"""
    + _LOAD
    + """\
[extensions.balancer.strategies.shedding.transfer]
hit_threshold = 1
cool_down_s = 2
grace_s = 5
target_std = 0.1

[extensions.balancer.strategies.shedding.weighted-move]
hits = 1
grace_s = 5
"""
)

LAUNCH_SETTINGS = (
    """\
# Settings of the brokers of `demo --balance`. Load is simulated: three namespaces are equally busy, until one becomes
# much busier. The balancer runs every two seconds instead of every minute, with shorter waits than in production.

"""
    + _BALANCER
    + """\
[extensions.balancer.simulated]
topics = 100
msg_rate = 40
heavy = 20
wave = 0.05
noise = 0.05
hot_namespace = "{namespace}"
hot_factor = {factor}
hot_from_s = {from_s}

"""
    + _LOAD
    + """\
[extensions.balancer.strategies.shedding.transfer]
hit_threshold = 1
cool_down_s = 2
grace_s = 600
target_std = 0.05

[extensions.balancer.strategies.shedding.weighted-move]
hits = 1
"""
)
