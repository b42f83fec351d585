/*
 * The channel protocol as a model in Alloy 6. Read it beside ../protocol.md: each part names the section that it models.
 * README.md says how to run it, what it shows and what it leaves out.
 *
 * Alloy in four lines: `sig` declares a set of atoms, and its fields are relations. `a.f` follows the field `f` from `a`.
 * `r -> s` is a pair. `check` looks for a counterexample in all worlds of its scope, `run` for an example. There is no
 * time here: a world is one whole log, with what readers make of each of its records.
 */
module channel

open util/ordering[Record] as log          // all records, in the order of their offsets
open util/ordering[Version] as versions    // 0, 1, 2 and so on

/* --------------------------------------------------------------------------------------------------------------------
 * Rules that a command can take away, to show that they are needed
 * ----------------------------------------------------------------------------------------------------------------- */

enum Rule {
  // section 2
  VersionMustFit, DeletionCountsBundles, SplitGoesOn,
  // section 3
  Debts, StaleAssertIsUnclean, NullNeedsAbsence, PayerCoversSettled, PayerCoversUnclean, DerivationPaysNothing, DebtsOutlive,
  // section 4
  TakeHigher, TakeCovering, DerivedNeedsNewer,
  // section 5
  CleanHeartbeat, NothingHiddenAbove, LastRecordSettles
}
one sig Page { without: set Rule }          // the protocol's page, without these rules
pred rule[x: Rule] { x not in Page.without }

/* --------------------------------------------------------------------------------------------------------------------
 * Keys and records (section 1)
 * ----------------------------------------------------------------------------------------------------------------- */

abstract sig Key {}
sig Namespace extends Key {}
sig Bundle extends Key { inside: Namespace, points: some Point }
one sig Control extends Key {}             // stands for all keys that begin with "!"
sig Unknown extends Key {}                 // a key of no known form
sig Elsewhere in Key {}                    // keys that belong in another partition

sig Point {}                               // a range of hashes that no bundle of this world divides
sig Broker {}
sig Id {}
sig Version {}

enum State { Unassigned, Assigning, Assigned, Releasing, Splitting, Deleted, Active, Absent }

abstract sig Record {
  key: Key,
  verdict: Verdict,                        // section 3
  accepted: (Namespace + Bundle) -> lone Proposal  // section 2: what is accepted when this record has been read
}
abstract sig Change extends Record {
  id: Id,
  version: Version,
  base: lone Id,                           // what a proposal builds on, or what an assert restates
  part: lone Bundle,                       // the range, if that is a derived state, whose id is <id>/<range>
  state: State,
  from, to: lone Broker,
  children: set Bundle,                    // none also if the list has holes or is in disorder
  covers: lone Record                      // none: -1
}
sig Proposal, Assert extends Change {}
sig Forced in Proposal {}
sig Null extends Record {}                 // a tombstone
sig Junk extends Record {}                 // what cannot be decoded
sig Newer extends Record {}                // a newer format
sig Heartbeat extends Record {
  cleanTo: lone Record,                    // none: -1
  by: lone Joiner                          // its writer; none: a reader of the whole log
}
sig Mark extends Record {}                 // any other record on a control key

fact WellFormed {
  all r: Record | r.key = Control iff r in Heartbeat + Mark
  all c: Change {
    c.key in Namespace => no c.from + c.to and c.state in Active + Deleted + Absent else c.state != Active
    c.state = Absent => c in Assert
    some c.children => c.state = (c.key in Namespace => Active else Deleted) and c.children.inside = namespaceOf[c.key]
    some c.part => some c.base
    c.version != versions/last             // so that every version has a next one
  }
  all disj a, b: Bundle | a.inside = b.inside => a.points != b.points
}

fun namespaceOf[k: Key]: lone Namespace { k in Bundle => k.inside else k & Namespace }
fun earlierThan[r: Record]: set Record { log/prevs[r] }
fun laterThan[r: Record]: set Record { log/nexts[r] }
fun upTo[r: Record]: set Record { r + earlierThan[r] }
fun newest[records: set Record]: lone Record { log/max[records] }
fun oneAbove[v: Version]: lone Version { versions/next[v] }

/* --------------------------------------------------------------------------------------------------------------------
 * What an accepted state is (section 2)
 *
 * The accepted state of key `k` is given by one record, its holder `h`. If `h` is a record of another key, the state is
 * derived: `h` is an Active namespace or the Deleted record of a split, and `k` is one of its children. A lenient joiner
 * may also hold an assert.
 * ----------------------------------------------------------------------------------------------------------------- */

pred isDerived[h: lone Change, k: Key] { some h and h.key != k }
fun versionOf[h: lone Change, k: Key]: lone Version {
  (not isDerived[h, k] or h.key in Namespace) => h.version
  else rule[SplitGoesOn] => oneAbove[h.version] else oneAbove[versions/first]
}
fun stateOf[h: lone Change, k: Key]: lone State {
  no h => none else not isDerived[h, k] => h.state else h.key in Namespace => Unassigned else Assigned
}
fun fromOf[h: lone Change, k: Key]: lone Broker { not isDerived[h, k] => h.from else none }
fun toOf[h: lone Change, k: Key]: lone Broker {
  not isDerived[h, k] => h.to else h.key in Namespace => none else h.from
}
fun childrenOf[h: lone Change, k: Key]: set Bundle { not isDerived[h, k] => h.children else none }
fun idOf[h: lone Change]: lone Id { h in Assert => h.base else h.id }
fun partOf[h: lone Change, k: Key]: lone Bundle { isDerived[h, k] => k & Bundle else h in Assert => h.part else none }

pred sameState[g, h: lone Change, k: Key] {
  versionOf[g, k] = versionOf[h, k] and stateOf[g, k] = stateOf[h, k]
  fromOf[g, k] = fromOf[h, k] and toOf[g, k] = toOf[h, k]
  idOf[g] = idOf[h] and partOf[g, k] = partOf[h, k] and childrenOf[g, k] = childrenOf[h, k]
}

/* A namespace that begins or ends takes all states of its bundles away. Derived states come with the record of the parent. */
fun acceptedBefore[r: Record]: Key -> lone Proposal { log/prev[r].accepted }
fun acceptedAfter[r: Record]: Key -> lone Proposal {
  r.verdict != Accepted => acceptedBefore[r]
  else ((Key - (inside.(r.key))) <: acceptedBefore[r]) ++ ((r.key + r.children) -> r)
}
fun liveBundles[states: Key -> lone Proposal, n: Key]: set Bundle {
  { b: inside.n | some states[b] and stateOf[states[b], b] != Deleted }
}

/* --------------------------------------------------------------------------------------------------------------------
 * Moves (section 2)
 * ----------------------------------------------------------------------------------------------------------------- */

fun moves: State -> State {
  Unassigned -> Assigning + Assigning -> (Assigned + Unassigned) + Assigned -> (Assigned + Releasing + Splitting)
  + Releasing -> (Assigning + Unassigned + Assigned) + Splitting -> (Deleted + Assigned)
}
pred listed[r: Proposal, h: lone Change] {
  let was = stateOf[h, r.key], move = was -> r.state {
    r.key in Namespace => r not in Forced and (was = Active => r.state = Deleted else r.state = Active)
    else r in Forced => was != Deleted and r.state in Unassigned + Assigning
    else {
      move in moves
      move = Releasing -> Assigning => some toOf[h, r.key]     // a transfer
      move = Releasing -> Unassigned => no toOf[h, r.key]      // an unload
    }
  }
}
pred brokersFit[r: Proposal, h: lone Change] {
  let move = stateOf[h, r.key] -> r.state, from_ = fromOf[h, r.key], to_ = toOf[h, r.key] {
    r.key in Namespace
    or (r in Forced and (r.state = Assigning iff some r.to))
    or (r not in Forced and {
      move = Unassigned -> Assigning => no r.from and some r.to
      move = Assigning -> Assigned => r.from = from_ and r.to = to_
      move = Assigning -> Unassigned => r.from = to_ and no r.to
      move = Assigned -> Assigned => no r.from and r.to = to_
      move = Assigned -> Releasing => r.from = to_ and (no r.to or r.to != r.from)
      move = Assigned -> Splitting => r.from = to_ and no r.to
      move = Releasing -> Assigning => r.from = from_ and r.to = to_
      move = Releasing -> Unassigned => r.from = from_ and no r.to
      move in (Releasing + Splitting) -> Assigned => no r.from and r.to = from_
      move = Splitting -> Deleted => r.from = from_ and no r.to
    })
  }
}
pred coverExactly[parts: set Bundle, whole: set Point] {
  parts.points = whole and all disj a, b: parts | no a.points & b.points
}
pred childrenFit[r: Change] {
  r.key in Namespace and r.state = Active => coverExactly[r.children, Point]
  r.key in Bundle and r.state = Deleted => coverExactly[r.children, r.key.points] and not lone r.children
}

/* A proposal's version must be one above this; a namespace that never existed may begin at any version above it. */
fun highestSoFar[r: Proposal, h: lone Change]: lone Version {
  no h => versions/first
  else rule[DeletionCountsBundles] and r.state = Deleted and stateOf[h, r.key] = Active and r.key in Namespace =>
    (let states = acceptedBefore[r], bundles = liveBundles[states, r.key] |
      versions/max[h.version + { v: Version | some b: bundles | v = versionOf[states[b], b] }])
  else versionOf[h, r.key]
}

/* --------------------------------------------------------------------------------------------------------------------
 * Verdicts of a caught-up reader (section 3): the first that applies counts
 * ----------------------------------------------------------------------------------------------------------------- */

enum Verdict {
  NotJudged, UnsupportedFormat, WrongPartition, Purged, Undecodable, AssertEqual, AssertStale, Duplicate, UnknownBundle,
  StaleVersion, VersionGap, WrongBase, IllegalMove, WrongBroker, BadChildren, NamespaceInUse, Accepted
}
fun judge[r: Record]: Verdict {
  r.key = Control => NotJudged
  else r in Newer => UnsupportedFormat
  else r.key in Unknown => (r in Null => Purged else Undecodable)
  else r.key in Elsewhere => WrongPartition
  else r in Null => (purges[r, Settling, Record] => Purged else Undecodable)
  else r in Junk => Undecodable
  else r in Assert => (restates[r, acceptedBefore[r][r.key]] => AssertEqual else AssertStale)
  else judgeProposal[r, acceptedBefore[r][r.key]]
}
fun judgeProposal[r: Proposal, h: lone Change]: Verdict {
  some h and not isDerived[h, r.key] and r.id = h.id => Duplicate
  else no h and not (r.key in Namespace and r.state = Active) => UnknownBundle
  else rule[VersionMustFit] and versions/lte[r.version, highestSoFar[r, h]] => StaleVersion
  else rule[VersionMustFit] and some h and r.version != oneAbove[highestSoFar[r, h]] => VersionGap
  else not (r.base = idOf[h] and r.part = partOf[h, r.key]) => WrongBase
  else not listed[r, h] => IllegalMove
  else not brokersFit[r, h] => WrongBroker
  else not childrenFit[r] => BadChildren
  else r.key in Namespace and r.state = Deleted and inUse[r] => NamespaceInUse
  else Accepted
}

pred inUse[r: Proposal] {
  some b: liveBundles[acceptedBefore[r], r.key] | stateOf[acceptedBefore[r][b], b] != Unassigned
}
pred restates[a: Assert, h: lone Change] {
  a.state = Absent => no h and a.version = versions/first and no a.base else {
    some h and a.version = versionOf[h, a.key] and a.state = stateOf[h, a.key]
    a.from = fromOf[h, a.key] and a.to = toOf[h, a.key] and a.children = childrenOf[h, a.key]
    a.base = idOf[h] and a.part = partOf[h, a.key]
  }
}

fact Reading {
  all r: Record | r.verdict = judge[r] and r.accepted = acceptedAfter[r]
}

/* --------------------------------------------------------------------------------------------------------------------
 * Debts (section 3)
 *
 * A reader is known here by the records that it remembers (`read`) and by those of them that settled their keys (`paid`).
 * A key is in debt iff the newest record of it that the reader remembers did not settle it.
 * ----------------------------------------------------------------------------------------------------------------- */

sig Settling in Record {}                  // what settled its key for a reader of the whole log

fun owed: set Key { Namespace + Bundle - Elsewhere }

pred inDebt[k: Key, r: lone Record, paid, read: set Record] {
  rule[Debts]
  let last = newest[key.k & upTo[r] & read], later = upTo[r] - upTo[last] {
    some last and last not in paid
    rule[DerivationPaysNothing] or no d: later & verdict.Accepted | k in d.children
    rule[DebtsOutlive] or no d: later & verdict.Accepted | d.key = namespaceOf[k]
  }
}
pred purges[r: Null, paid, read: set Record] {
  rule[NullNeedsAbsence] => no acceptedBefore[r][r.key] and not inDebt[r.key, log/prev[r], paid, read]
}
pred clean[r: Record, paid, read: set Record] {
  r in Null => purges[r, paid, read]
  else r.verdict in Accepted + AssertEqual + (rule[StaleAssertIsUnclean] => none else AssertStale)
}
pred settles[r: Record, paid, read: set Record] {
  clean[r, paid, read]
  let earlier = key.(r.key) & earlierThan[r] & read, last = newest[earlier & paid],
      unclean = (earlier - upTo[last]) - verdict.(Accepted + AssertEqual), covered = upTo[r.covers] {
    r in Null or not rule[PayerCoversSettled] or last in covered
    r in Null or not rule[PayerCoversUnclean] or newest[unclean] in covered
      or all x: unclean & Change | versions/gt[r.version, x.version]
  }
}
fact Settled {
  Settling = { r: key.owed | settles[r, Settling, Record] }
}

/* --------------------------------------------------------------------------------------------------------------------
 * Who writes what: anybody may write any proposal, null or junk. Asserts and heartbeats are honest, as Kafka's ACLs see to.
 * ----------------------------------------------------------------------------------------------------------------- */

fact Honest {
  // An assert restates what was accepted as far as its writer had read, however late it comes.
  all a: Assert | a.covers in earlierThan[a] and restates[a, a.covers.accepted[a.key]]
  // A heartbeat vouches for what its writer had applied without debt (section 5).
  all h: Heartbeat {
    h.cleanTo in earlierThan[h]
    some h.by => h.by.vouch in earlierThan[h] and h.by.through in upTo[h.cleanTo]
    some h.cleanTo and rule[CleanHeartbeat] => no k: owed | inDebt[k, h.cleanTo, paidFor[h.by], readBy[h.by]]
  }
}
fun paidFor[j: lone Joiner]: set Record { no j => Settling else j.settling }
fun readBy[j: lone Joiner]: set Record { no j => Record else remembered[j] }

/* --------------------------------------------------------------------------------------------------------------------
 * A joining reader of a cleaned log (sections 4 and 5)
 * ----------------------------------------------------------------------------------------------------------------- */

sig Joiner {
  left: set Record,                        // what the cleaner has left
  hiding: lone Record,                     // the newest record that hid a removed one
  vouch: Heartbeat,                        // the heartbeat by which the join ends
  through: Record,                         // where the lenient reading ends: N
  took: set Change,                        // what the lenient reading took, also what it replaced later
  view: (Namespace + Bundle) -> lone Change,   // what it holds for accepted where the lenient reading ends
  settling: set Record
}
fun gone[j: Joiner]: set Record { { n: Null - j.left | no key.(n.key) & laterThan[n] & upTo[j.hiding] } }

/* The cleaner may remove what a later record of the key hides; a null itself, once all before it is gone (section 3, Purge). */
fact Cleaning {
  all j: Joiner, r: Record - j.left {
    r in upTo[j.hiding]
    some key.(r.key) & laterThan[r] & upTo[j.hiding] or (r in Null and no key.(r.key) & upTo[r] & j.left)
  }
  // Once a null is gone, what it hid is gone everywhere: `delete.retention.ms` sees to that.
  all j, later: Joiner | j.through in upTo[later.through] =>
    all n: gone[j] | no key.(n.key) & upTo[n] & later.left
}

/* Section 5, step 3: what hides a record lies at N or below. Either N is not below the end of the log as of the start of
 * the join, or nothing above N is as old as half the lag. */
fact Joining {
  all j: Joiner {
    j.through = j.vouch.cleanTo and j.vouch in j.left
    rule[NothingHiddenAbove] => j.hiding in upTo[j.through]
    j.took = { r: j.left & upTo[j.through] | takes[r, heldBefore[r, j]] }
    all k: Key | j.view[k] = seen[k, j]
    j.settling = { r: j.left & key.owed | r in upTo[j.through]
      => r = newest[key.(r.key) & j.left & upTo[j.through]] else settles[r, j.settling, remembered[j]] }
  }
}
fun heldBefore[r: Record, j: Joiner]: lone Change {
  Change & newest[key.(r.key) & earlierThan[r] & (j.took + (Null & j.left))]
}
fun held[k: Key, j: Joiner]: lone Change {
  (Change & newest[key.k & upTo[j.through] & (j.took + (Null & j.left))]) - state.Absent
}
pred takes[r: Record, h: lone Change] {
  r in Change and r.key in owed and childrenFit[r]
  no h
  or (rule[TakeHigher] and versions/gt[r.version, h.version])
  or (rule[TakeHigher] and r in Assert and r.version = h.version)
  or (rule[TakeCovering] and h in upTo[r.covers])
}
/* The tree is walked from the namespaces: a derived state stands unless the key's own record has at least its version. */
fun seen[k: Key, j: Joiner]: lone Change {
  k in Namespace => held[k, j]
  else let h = j.took & j.view[{ p: Key | k in childrenOf[j.view[p], p] }], own = held[k, j] |
    (some h and some own and not older[own, h, k]) => own else h
}
pred older[own, h: Change, k: Key] { rule[DerivedNeedsNewer] and versions/lt[own.version, versionOf[h, k]] }
fun remembered[j: Joiner]: set Record { rule[LastRecordSettles] => j.left else j.left - upTo[j.through] }

/* --------------------------------------------------------------------------------------------------------------------
 * Claims (section 9)
 * ----------------------------------------------------------------------------------------------------------------- */

pred JoinersAgree {
  all j: Joiner, k: Key | let truth = j.through.accepted[k], seen = j.view[k] |
    (some truth iff some seen) and sameState[truth, seen, k]
}


/* Versions never shrink for a topic, whatever bundle its hash falls in; and one version is one state. */
pred VersionsGrow {
  all n: Namespace, p: Point, s: Record | let r = log/last |
    let b = liveBundles[r.accepted, n] & points.p, h = r.accepted[b],
        c = liveBundles[s.accepted, n] & points.p, g = s.accepted[c] |
      some g and some h =>
        versions/gt[versionOf[h, b], versionOf[g, c]] or (versionOf[h, b] = versionOf[g, c] and g = h and b = c)
}
/* The owner and the generation of a bundle that is served. For a topic generations never shrink, and each has one owner. */
fun ownerOf[h: lone Change, k: Key]: lone Broker {
  stateOf[h, k] = Assigned => toOf[h, k] else stateOf[h, k] in Releasing + Splitting => fromOf[h, k] else none
}
fun generationOf[h: lone Change, k: Key]: lone Version {
  stateOf[h, k] = Assigned => versionOf[h, k]
  else stateOf[h, k] in Releasing + Splitting => versions/prev[versionOf[h, k]] else none
}
pred OneOwnerAGeneration {
  all n: Namespace, p: Point, s: Record | let r = log/last |
    let b = liveBundles[r.accepted, n] & points.p, h = r.accepted[b],
        c = liveBundles[s.accepted, n] & points.p, g = s.accepted[c] |
      some ownerOf[g, c] and some ownerOf[h, b] =>
        versions/gt[generationOf[h, b], generationOf[g, c]]
        or (generationOf[h, b] = generationOf[g, c] and ownerOf[h, b] = ownerOf[g, c])
}
/* The live bundles of a namespace cover the hash space exactly once, at every offset. */
pred RingIsCovered {
  all r: Record, n: Namespace | let bundles = liveBundles[r.accepted, n] |
    stateOf[r.accepted[n], n] = Active => coverExactly[bundles, Point] else no bundles
}

/* --------------------------------------------------------------------------------------------------------------------
 * Commands: claims that hold, rules that are needed, and moves that happen. README.md says what a scope means.
 * ----------------------------------------------------------------------------------------------------------------- */

pred Whole { no Page.without and no Elsewhere }
pred Without[x: Rule] { Page.without = x and no Elsewhere }

/* Without loss of generality: the join ends by a heartbeat after all records, which vouches for all; the rest is strict. */
pred JoinAtTheEnd {
  Heartbeat = log/last and log/last.cleanTo = log/prev[log/last] and no log/last.by
  Joiner.hiding = Joiner.through
  earlierThan[Mark] in Mark                // marks say nothing here: they come first, and stand for shorter logs
}
/* The second joiner's heartbeat, at the end, is written by the first joiner, which joined by the first heartbeat. */
pred JoinByAMember {
  some disj member, other: Joiner {
    Heartbeat = member.vouch + log/last and no member.vouch.by and log/last.by = member and other.vouch = log/last
    log/last.cleanTo = log/prev[log/last] and Record = member.left
    other.hiding = other.through
  }
}
pred MovesAreSafe { VersionsGrow and OneOwnerAGeneration and RingIsCovered }

/* Before the heartbeat: accepted records only; proposals only, of which at most one is rejected. */
pred AllAccepted { Record in verdict.Accepted + Heartbeat }
pred OneRejected { Record in Proposal + Heartbeat and lone Proposal - verdict.Accepted }
/* Only records on the key of a namespace. */
pred OnNamespaces { Record.key in Namespace + Control }
/* Accepted records only: others change no accepted state. */
pred OnlyMoves { Record = verdict.Accepted + Mark and earlierThan[Mark] in Mark }
/* The first four records make the only bundle of a namespace ready to be split. */
pred AboutToSplit {
  let r0 = log/first, r1 = log/next[r0], r2 = log/next[r1], r3 = log/next[r2] |
    r0 + r1 + r2 + r3 in verdict.Accepted and r0.state = Active and r1.state = Assigning and r2.state = Assigned
      and r3.state = Splitting and no (r0 + r1 + r2 + r3) & Forced
      and one r0.children and r0.version = oneAbove[versions/first]
      and no r0.covers and r1.covers = r0 and r2.covers = r1 and r3.covers = r2
}

check Joins { Whole and JoinAtTheEnd => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 0
check JoinsOfNamespaces { Whole and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 0
check Moves { Whole and OnlyMoves => MovesAreSafe }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 2 Broker, 3 Id, 0 Joiner, 5 Version, 4 Record expect 0
check MovesAfterSplits { Whole and OnlyMoves and AboutToSplit => MovesAreSafe }
  for 4 but 1 Namespace, 3 Bundle, 0 Unknown, 0 Newer, 2 Point, 1 Broker, 3 Id, 0 Joiner, 7 Version, 5 Record expect 0

run ExampleJoin { Whole and JoinAtTheEnd and some k: Bundle | some Joiner.view[k] & key.k and some Record - Joiner.left }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 5 Version, 4 Record expect 1
run ExampleTransfer { Whole and OnlyMoves and some r: verdict.Accepted - Forced |
    stateOf[acceptedBefore[r][r.key], r.key] = Releasing and r.state = Assigning }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 2 Broker, 3 Id, 0 Joiner, 7 Version, 5 Record expect 1
run ExampleSplit { Whole and OnlyMoves and AboutToSplit and some r: verdict.Accepted & key.Bundle | r.state = Deleted }
  for 4 but 1 Namespace, 3 Bundle, 0 Unknown, 0 Newer, 2 Point, 1 Broker, 3 Id, 0 Joiner, 7 Version, 5 Record expect 1

check WithoutVersionMustFit { Without[VersionMustFit] and OnlyMoves => OneOwnerAGeneration }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 3 Id, 0 Joiner, 5 Version, 4 Record expect 1
check WithoutDeletionCountsBundles { Without[DeletionCountsBundles] and OnlyMoves and key.Bundle in Forced => VersionsGrow }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 3 Id, 0 Joiner, 5 Version, 5 Record expect 1
check WithoutSplitGoesOn { Without[SplitGoesOn] and OnlyMoves and AboutToSplit => VersionsGrow }
  for 4 but 1 Namespace, 3 Bundle, 0 Unknown, 0 Newer, 2 Point, 1 Broker, 5 Id, 0 Joiner, 7 Version, 5 Record expect 1
check WithoutDebts { Without[Debts] and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutStaleAssertIsUnclean { Without[StaleAssertIsUnclean] and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutNullNeedsAbsence { Without[NullNeedsAbsence] and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutPayerCoversSettled { Without[PayerCoversSettled] and OnNamespaces and JoinAtTheEnd => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutPayerCoversUnclean { Without[PayerCoversUnclean] and OnNamespaces and JoinAtTheEnd => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutDerivationPaysNothing { Without[DerivationPaysNothing] and JoinAtTheEnd => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutDebtsOutlive { Without[DebtsOutlive] and JoinAtTheEnd and OneRejected => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 3 Id, 1 Joiner, 5 Version, 5 Record expect 1
check WithoutTakeHigher { Without[TakeHigher] and OnNamespaces and JoinAtTheEnd => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutTakeCovering { Without[TakeCovering] and OnNamespaces and JoinAtTheEnd => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutDerivedNeedsNewer { Without[DerivedNeedsNewer] and JoinAtTheEnd and AllAccepted => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 3 Id, 1 Joiner, 6 Version, 5 Record expect 1
check WithoutCleanHeartbeat { Without[CleanHeartbeat] and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutNothingHiddenAbove { Without[NothingHiddenAbove] and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 4 Record expect 1
check WithoutLastRecordSettles { Without[LastRecordSettles] and JoinByAMember and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 2 Joiner, 4 Version, 5 Record expect 1

// These take minutes: joins with all rules, in the worlds where the last Without... commands fail, and on longer logs.
check SlowJoinsByAMember { Whole and JoinByAMember and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 2 Joiner, 4 Version, 5 Record expect 0
check SlowJoinsOfAccepted { Whole and JoinAtTheEnd and AllAccepted => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 3 Id, 1 Joiner, 6 Version, 5 Record expect 0
check SlowJoinsWithOneRejected { Whole and JoinAtTheEnd and OneRejected => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 3 Id, 1 Joiner, 5 Version, 5 Record expect 0
check SlowJoinsOfLongerLogs { Whole and JoinAtTheEnd and OnNamespaces => JoinersAgree }
  for 4 but 1 Namespace, 1 Bundle, 0 Unknown, 0 Newer, 1 Point, 1 Broker, 2 Id, 1 Joiner, 4 Version, 5 Record expect 0
