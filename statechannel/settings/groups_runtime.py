"""Settings of what runs an engine in a process: the loop, its watchdog, the threads at its side, the requests topic."""

from __future__ import annotations

from statechannel.settings.field import SettingsGroup, setting


class RuntimeSettings(SettingsGroup):
    """The process around an engine."""

    join_timeout_s: float = setting(
        120.0,
        "Longest wait of a start until it has caught up: a replay of a million records takes a fraction, a cold start "
        "with its wait for others the rest.",
        gt=0,
        le=86_400,
    )
    watchdog_s: float = setting(
        10.0,
        "A loop that stands still for this long is called stuck, and `broker run` ends its process: later than the "
        "others miss its heartbeats, far above any pause of a healthy one.",
        ge=0.5,
        le=600,
    )
    close_timeout_s: float = setting(
        8.0,
        "Longest time for flushing and closing the Kafka clients at the end: supervisors kill after ten seconds or more.",
        gt=0,
        le=600,
    )
    shutdown_grace_s: float = setting(
        5.0,
        "A shutdown that has not ended this long after its budget is ended by force: the goodbye takes two heartbeats.",
        ge=0,
        le=600,
    )
    commands_max: int = setting(
        100_000, "Commands and lookups of callers that may wait for an answer; more are refused: 100 MB at most.", ge=1
    )
    changes_max_mib: int = setting(
        64,
        "What may wait for a subscriber of the changes that does not take them, beside the number it asked for; then its "
        "stream ends with an error that names the position.",
        ge=1,
    )
    restarts_max: int = setting(
        5,
        "Failures of the reader's or the election's thread that are borne within the window; one more ends the member, "
        "since its cause does not go away by itself.",
        ge=0,
        le=1_000,
    )
    restart_window_s: float = setting(60.0, "Older failures of a thread are forgotten.", gt=0, le=86_400)
    restart_first_wait_s: float = setting(
        0.2, "Wait before a thread that failed is started again; doubled each time.", gt=0, le=60
    )
    restart_longest_wait_s: float = setting(
        5.0, "Upper bound of that wait: below the time after which the others miss this broker.", gt=0, le=600
    )


class RequestSettings(SettingsGroup):
    """The desk of a broker: commands that come through the requests topic."""

    open_max: int = setting(10_000, "Requests without a reply that are taken; more are refused with a reply.", ge=1)
    open_max_mib: int = setting(
        64, "Likewise by their size: a request that names 32,768 bounds has a few hundred kilobytes.", ge=1
    )
    extension_requests_max: int = setting(
        100, "Requests that extensions of this broker may be answering at the same time; more are refused.", ge=1
    )
    remembered_max: int = setting(
        20_000, "Ended requests that are remembered, so that a repeated id is not executed again.", ge=1
    )
    repeat_s: float = setting(
        2.0, "A claim or reply that was not read back is written again after this long: copies do no harm.", gt=0, le=60
    )
    review_s: float = setting(
        0.25,
        "Time between two looks at all open requests, because owners and leaders change; one that was read of just now "
        "is looked at at once.",
        gt=0,
        le=60,
    )
    linger_s: float = setting(
        300.0, "A request is forgotten this long after its deadline, replied to or not: nobody waits any more.", ge=0
    )
    reply_max_bytes: int = setting(
        500_000,
        "A larger reply is replaced by one that says so: half of what Kafka takes by default.",
        ge=1_000,
        le=900_000,
    )
