#!/bin/sh
# Rebalance Kafka's partitions within a time window; a timer calls it once in each window:
#     rebalance-partitions.sh FROM UNTIL [OPTION of `statechannel partitions plan`]...
# FROM and UNTIL are local times, HH:MM. What is in flight at UNTIL is taken back; what has arrived stays.
set -eu
from=$1 until=$2
shift 2
state=${STATE:-/var/lib/rebalance-partitions}
plan=$state/plan.json running=$state/running.json

seconds() ( IFS=:; set -- $1 00; echo $((${1#0} * 3600 + ${2#0} * 60 + ${3#0})) )
begin=$(seconds "$from")
end=$(seconds "$until")

require_window() { # sets `left`, the seconds until its end
    left=$(((end - $(seconds "$(date +%H:%M:%S)") + 86399) % 86400 + 1))
    [ $left -le $(((end - begin + 86399) % 86400 + 1)) ] || { echo "outside of $from-$until" >&2; exit 0; }
}

take_back() { # exit code 5: its execution had not begun
    id=$(sed -n 's/^"id": "\(.*\)",$/\1/p' "$running")
    statechannel partitions cancel "$id" --state "$state" || [ $? -eq 5 ]
    rm "$running"
}

mkdir -p "$state"
exec 9>"$state/lock"
flock -n 9 || { echo "another run is not over" >&2; exit 0; }
[ ! -e "$running" ] || take_back # the last run was killed
require_window
code=0
statechannel partitions plan --max-bytes "${MAX_BYTES:-500GB}" --min-gain "${MIN_GAIN:-10%}" --out "$plan" --replace "$@" || code=$?
[ $code -ne 5 ] || exit 0 # not worth it
[ $code -eq 0 ] || exit $code
! grep -Eq '"alive":false|"size_bytes":null' "$plan" || { echo "a broker is down, or a size is unknown" >&2; exit 3; }
require_window
mv "$plan" "$running"
timeout --foreground -k 120 "$left" statechannel partitions apply "$running" --execute --throttle "${THROTTLE:-50MB/s}" \
    --state "$state" || code=$?
if [ $code -eq 0 ]; then rm "$running"; else take_back; fi
[ $code -eq 124 ] || exit $code
