/*
 * A real log, step by step: tests/model writes down what the code made of each record, and asks for what differs from the
 * model. The facts of the model are not asked for here: a log may be as hostile as it likes.
 */
module trace

open channel

/* What the code said of the state of key `of` that the record `holder` gave it. */
sig Said {
  holder: Change,
  of: Key,
  saidVersion: Version,
  saidState: State,
  saidFrom, saidTo: lone Broker,
  saidId: lone Id,
  saidPart: lone Bundle,
  saidChildren: set Bundle
}
one sig Code { debts: Record -> Key }      // the keys that the code saw in debt when it had read this record

fun wrongVerdicts: set Record { { r: Record | r.verdict != judge[r] } }
fun wrongAccepted: set Record { { r: Record | r.accepted != acceptedAfter[r] } }
fun wrongSettling: set Record { { r: Record | r in Settling iff not (r.key in owed and settles[r, Settling, Record]) } }
fun wrongDebts: set Record { { r: Record - Newer | Code.debts[r] != { k: owed | inDebt[k, r, Settling, Record] } } }
fun wrongStates: set Said {
  { s: Said | not (s.saidVersion = versionOf[s.holder, s.of] and s.saidState = stateOf[s.holder, s.of]
    and s.saidFrom = fromOf[s.holder, s.of] and s.saidTo = toOf[s.holder, s.of] and s.saidId = idOf[s.holder]
    and s.saidPart = partOf[s.holder, s.of] and s.saidChildren = childrenOf[s.holder, s.of]) }
}
fun wrongTaken: set Record {
  { r: Record | some j: Joiner | r in j.left & upTo[j.through] and (r in j.took iff not takes[r, heldBefore[r, j]]) }
}
fun wrongSeen: set Key { { k: Key | some j: Joiner | j.view[k] != seen[k, j] } }

/* Of logs whose writers are honest: what breaks the assumptions of the model about them (`Honest`). */
fun dishonest: set Record {
  { a: Assert & key.owed | not restates[a, a.covers.accepted[a.key]] }
  + { h: Heartbeat | some h.cleanTo & earlierThan[h] and some k: owed | inDebt[k, h.cleanTo, Settling, Record] }
}

run Skeleton {} for 1 but 0 Joiner, 0 Said expect 1
