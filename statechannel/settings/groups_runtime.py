"""Settings of the process around an engine: the loop, its watchdog, threads, and the requests topic."""

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
        "A loop that makes no progress for this time is stuck, and `broker run` ends its process: later than the "
        "expiry of its heartbeats, far above any pause of a healthy one.",
        ge=0.5,
        le=600,
    )
    close_timeout_s: float = setting(
        8.0,
        "Longest time for flushing and closing the Kafka clients at shutdown: supervisors kill after ten seconds or more.",
        gt=0,
        le=600,
    )
    shutdown_grace_s: float = setting(
        5.0,
        "A shutdown that has not ended this time after its budget is forced: the goodbye takes two heartbeats.",
        ge=0,
        le=600,
    )
    commands_max: int = setting(
        100_000, "Commands and lookups of callers waiting for an answer; more are refused: at most 100 MB.", ge=1
    )
    changes_max_mib: int = setting(
        64,
        "Size of the changes queued for a slow subscriber, as well as the number that it asked for; beyond it its "
        "stream ends with an error that names the position.",
        ge=1,
    )
    restarts_max: int = setting(
        5,
        "Failures of the reader's or the election's thread that are tolerated within the window; one more ends the member, "
        "since its cause does not pass by itself.",
        ge=0,
        le=1_000,
    )
    restart_window_s: float = setting(60.0, "Older failures of a thread are forgotten.", gt=0, le=86_400)
    restart_first_wait_s: float = setting(
        0.2, "Back-off before a failed thread is restarted; doubled each time.", gt=0, le=60
    )
    restart_longest_wait_s: float = setting(
        5.0, "Upper bound of that back-off: below the time after which this broker is lost for others.", gt=0, le=600
    )


class RequestSettings(SettingsGroup):
    """Requests: commands that arrive through the requests topic."""

    open_max: int = setting(10_000, "Open requests; more are refused with a reply.", ge=1)
    open_max_mib: int = setting(
        64, "The same limit by their size (MiB): a request that names 32,768 bounds has a few hundred kilobytes.", ge=1
    )
    extension_requests_max: int = setting(
        100, "Concurrent requests to extensions of this broker; more are refused.", ge=1
    )
    remembered_max: int = setting(
        20_000, "Ended requests that are remembered, so that a repeated id is not executed twice.", ge=1
    )
    repeat_s: float = setting(
        2.0,
        "A claim or reply that was not read back is written again after this time: copies are harmless.",
        gt=0,
        le=60,
    )
    review_s: float = setting(
        0.25,
        "Time between two checks of all open requests, because owners and leaders change; a newly read one "
        "is checked at once.",
        gt=0,
        le=60,
    )
    linger_s: float = setting(
        300.0, "A request is forgotten this time after its deadline, with or without a reply.", ge=0
    )
    reply_max_bytes: int = setting(
        500_000,
        "A larger reply is replaced by one that says so: half of Kafka's default maximum.",
        ge=1_000,
        le=900_000,
    )
