# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Plain moves of bundles, compiled: the fast path of `statechannel.protocol.bulk_fold`, where nearly all of a replay is spent.

It has no rules of its own: the moves and what they ask for come from the tables of `statechannel.protocol.states`, translated
to numbers below. It applies a record only if `View.read` would accept it with the same result, and leaves every other one to
`View.read`: one with any escape, white space, further field or unknown name, too. So its reader of JSON knows
only what brokers write, in any order of fields.

What it applies it applies by `View.place` and `View.note`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Contains, PyDict_GetItemWithError
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, Py_TYPE
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.string cimport memcmp, memcpy
from libc.stdint cimport uint64_t

from types import GetSetDescriptorType, MemberDescriptorType

from statechannel.protocol.codec import ID, MAX_INT, MAX_VALUE_SIZE_BYTES, NAMES
from statechannel.protocol.keys import KeyState
from statechannel.protocol.record import FORMAT
from statechannel.protocol.states import BUNDLE_STATES, MOVES, Flow, MoveCondition, State, Who

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define EIGHT_AT_A_TIME 1
    #else
    #define EIGHT_AT_A_TIME 0
    #endif
    #define first_byte(marks) (__builtin_ctzll(marks) >> 3)
    #define ONES 0x0101010101010101ULL
    #define MARKS 0x8080808080808080ULL
    #define QUOTES 0x2222222222222222ULL
    #define SLASHES 0x5C5C5C5C5C5C5C5CULL
    #define BLANKS 0x2020202020202020ULL
    #define fetch_ahead(at) __builtin_prefetch(at)
    """
    int first_byte(uint64_t marks) nogil
    const bint EIGHT_AT_A_TIME
    const uint64_t ONES, MARKS, QUOTES, SLASHES, BLANKS
    void fetch_ahead(const void *at) nogil

cdef extern from "Python.h":
    object PyObject_Vectorcall(object, PyObject **, size_t, PyObject *)
    object PyUnicode_New(Py_ssize_t, unsigned int)
    int PyUnicode_IS_ASCII(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    void *PyUnicode_DATA(object)
    long long PyLong_AsLongLong(object) except? -1


if FORMAT != 1:
    raise ImportError(f"the accelerator is made for another version: records are of format {FORMAT}")

# --- attributes of the state of a key -----------------------------------------------------------------------------------

cdef extern from *:
    """
    #include <structmember.h>

    /* What is behind the descriptor of an attribute: getter and setter (a compiled class), or the place of a slot. */
    typedef struct {
        getter get;
        setter set;
        void *closure;
        PyMemberDef *member;
    } Attribute;

    static inline PyObject *read_attribute(const Attribute *attribute, PyObject *owner) {
        return attribute->get != NULL ? attribute->get(owner, attribute->closure)
                                      : PyMember_GetOne((const char *)owner, attribute->member);
    }

    static inline int write_attribute(const Attribute *attribute, PyObject *owner, PyObject *value) {
        return attribute->set != NULL ? attribute->set(owner, value, attribute->closure)
                                      : PyMember_SetOne((char *)owner, attribute->member, value);
    }

    static void open_getset(PyObject *descriptor, Attribute *attribute) {
        PyGetSetDef *found = ((PyGetSetDescrObject *)descriptor)->d_getset;
        attribute->get = found->get;
        attribute->set = found->set;
        attribute->closure = found->closure;
    }

    static void open_member(PyObject *descriptor, Attribute *attribute) {
        attribute->member = ((PyMemberDescrObject *)descriptor)->d_member;
    }
    """
    ctypedef struct Attribute:
        pass
    object read_attribute(const Attribute *, object)
    int write_attribute(const Attribute *, object, object) except -1
    void open_getset(object, Attribute *)
    void open_member(object, Attribute *)

cdef Attribute LOWER, UPPER, STATE, VERSION, SETTLED, RECORD_ID, DERIVED, FROM, TO, OPERATION
cdef PyObject *KEY_STATE = <PyObject *>KeyState


cdef open_attribute(str name, Attribute *attribute):
    """Find what the descriptor leads to, once: the way through it takes longer than all the rest.

    It is only used for objects of this very class, as the descriptor would check.
    """
    descriptor = vars(KeyState)[name]
    if type(descriptor) is GetSetDescriptorType:
        open_getset(descriptor, attribute)
    elif type(descriptor) is MemberDescriptorType:
        open_member(descriptor, attribute)
    else:
        raise ImportError(f"the accelerator is made for another version: KeyState.{name} is a {type(descriptor).__name__}")


open_attribute("lower", &LOWER)
open_attribute("upper", &UPPER)
open_attribute("state", &STATE)
open_attribute("version", &VERSION)
open_attribute("settled", &SETTLED)
open_attribute("record_id", &RECORD_ID)
open_attribute("derived", &DERIVED)
open_attribute("from_", &FROM)
open_attribute("to", &TO)
open_attribute("operation", &OPERATION)


cdef inline long long number_in(const Attribute *attribute, object key) except? -1:
    return PyLong_AsLongLong(read_attribute(attribute, key))

# --- the tables, as numbers -------------------------------------------------------------------------------------------

cdef enum:
    STATES = 6
    NONE = -1
    LONGEST_ID = 64

cdef enum Need:  # of the accepted state, before a move is listed at all
    NEED_NOTHING
    NEED_TO
    NEED_NO_TO

cdef enum Asked:  # of a broker of the record
    ANYONE
    NO_ONE
    SOMEONE
    ACCEPTED_FROM
    ACCEPTED_TO
    NO_ONE_OR_OTHER

cdef struct Row:
    bint listed
    int need
    int from_
    int to

cdef Row ROWS[6][6]
cdef PyObject *STATES_AT[6]
cdef const char *STATE_NAMES_AT[6]
cdef Py_ssize_t STATE_NAME_SIZES[6]
cdef tuple STATE_OBJECTS = tuple(sorted(BUNDLE_STATES))
cdef tuple STATE_NAMES = tuple(state.value.encode() for state in STATE_OBJECTS)
cdef long long MOST = MAX_INT
cdef Py_ssize_t MOST_BYTES = MAX_VALUE_SIZE_BYTES
cdef dict _NAMES = NAMES
cdef list FLOWS = [(flow.value.encode(), flow.value) for flow in Flow]

_NEEDS = {
    MoveCondition.NOTHING: NEED_NOTHING,
    MoveCondition.DESTINATION: NEED_TO,
    MoveCondition.NO_DESTINATION: NEED_NO_TO,
}
_ASKED = {
    Who.ANY: ANYONE,
    Who.NULL: NO_ONE,
    Who.SET: SOMEONE,
    Who.ACCEPTED_FROM: ACCEPTED_FROM,
    Who.ACCEPTED_TO: ACCEPTED_TO,
    Who.NULL_OR_OTHER: NO_ONE_OR_OTHER,
}


def _translate():
    cdef int was, to
    for was, before in enumerate(STATE_OBJECTS):
        STATES_AT[was] = <PyObject *>before
        STATE_NAMES_AT[was] = PyBytes_AS_STRING(STATE_NAMES[was])
        STATE_NAME_SIZES[was] = PyBytes_GET_SIZE(STATE_NAMES[was])
        for to, after in enumerate(STATE_OBJECTS):
            move = MOVES.get((before, after))
            # Children, planned or made, are no plain moves.
            ROWS[was][to].listed = move is not None and move.need in _NEEDS and after is not State.SPLITTING
            if ROWS[was][to].listed:
                ROWS[was][to].need = _NEEDS[move.need]
                ROWS[was][to].from_ = _ASKED[move.from_]
                ROWS[was][to].to = _ASKED[move.to]


_translate()

# --- the reader of JSON -----------------------------------------------------------------------------------------------

cdef struct Text:
    const char *at
    Py_ssize_t size  # NONE: null, or the field is absent (then `at` is NULL)

cdef struct Move:
    Text id, base, state, from_, to, broker, incarnation, operation, flow
    long long version, covers
    unsigned int seen

cdef enum:
    SAW_FORMAT = 1
    SAW_KIND = 2
    SAW_ID = 4
    SAW_COVERS = 8
    SAW_BY = 16
    SAW_VERSION = 32
    SAW_BASE = 64
    SAW_STATE = 128
    SAW_FROM = 256
    SAW_TO = 512
    SAW_FLOW = 1024
    SAW_OPERATION = 2048
    SAW_ACTION = 4096
    SAW_REASON = 8192
    SAW_WRITTEN_AT = 16384
    WANTED = 1023  # all of the first ten


cdef inline bint is_(Text text, const char *word, Py_ssize_t size) noexcept nogil:
    return text.size == size and memcmp(text.at, word, size) == 0


cdef inline const char *read_text(const char *at, const char *end, Text *text) noexcept nogil:
    """A string of printable ASCII without escapes, from behind its opening quote; behind the closing one, or NULL."""
    cdef uint64_t word, quote, slash, found
    text.at = at
    while EIGHT_AT_A_TIME and end - at >= 8:  # eight at a time: the lowest mark is at the first of them that ends the run
        memcpy(&word, at, 8)
        quote, slash = word ^ QUOTES, word ^ SLASHES
        found = ((quote - ONES) & ~quote) | ((slash - ONES) & ~slash) | ((word - BLANKS) & ~word) | word
        found &= MARKS
        if found:
            at += first_byte(found)
            text.size = at - text.at
            return at + 1 if at[0] == c'"' else NULL
        at += 8
    while at < end:
        if at[0] == c'"':
            text.size = at - text.at
            return at + 1
        if at[0] == c'\\' or at[0] < 32 or at[0] > 126:
            return NULL
        at += 1
    return NULL


cdef inline const char *read_only_text(const char *at, const char *end, Text *text) noexcept nogil:
    if at >= end or at[0] != c'"':
        return NULL
    return read_text(at + 1, end, text)


cdef inline const char *read_text_or_null(const char *at, const char *end, Text *text) noexcept nogil:
    if at >= end:
        return NULL
    if at[0] == c'"':
        return read_text(at + 1, end, text)
    if end - at >= 4 and memcmp(at, b"null", 4) == 0:
        text.at, text.size = at, NONE
        return at + 4
    return NULL


cdef inline const char *read_number(const char *at, const char *end, long long *number) noexcept nogil:
    """An integer of at most 16 digits; that nothing else of a number follows is seen by the caller, who wants a comma."""
    cdef bint negative = at < end and at[0] == c'-'
    cdef const char *first
    cdef long long value = 0
    if negative:
        at += 1
    first = at
    while at < end and c'0' <= at[0] <= c'9' and at - first < 16:
        value = value * 10 + (at[0] - c'0')
        at += 1
    if at == first or (first[0] == c'0' and (negative or at - first > 1)):
        return NULL
    number[0] = -value if negative else value
    return at


cdef const char *read_writer(const char *at, const char *end, Move *move) noexcept nogil:
    """The object of `by`, with its two fields and no other."""
    cdef Text name
    cdef int field
    if at >= end or at[0] != c'{':
        return NULL
    move.broker.at = move.incarnation.at = NULL
    for field in range(2):
        at += 1  # the brace, or the comma
        if at >= end or at[0] != c'"':
            return NULL
        at = read_text(at + 1, end, &name)
        if at == NULL or end - at < 2 or at[0] != c':' or at[1] != c'"':
            return NULL
        if is_(name, b"broker", 6) and move.broker.at == NULL:
            at = read_text(at + 2, end, &move.broker)
        elif is_(name, b"incarnation", 11) and move.incarnation.at == NULL:
            at = read_text(at + 2, end, &move.incarnation)
        else:
            return NULL
        if at == NULL or at >= end or at[0] != (c'}' if field else c','):
            return NULL
    return at + 1


cdef const char *read_field(const char *at, const char *end, Text name, Move *move, unsigned int *saw) noexcept nogil:
    """The value of a field; behind it, or NULL if the field or its value is none of a plain move."""
    cdef Text text
    cdef long long number
    saw[0] = 0
    if name.size == 2:
        if name.at[0] == c'i' and name.at[1] == c'd':
            saw[0] = SAW_ID
            return read_only_text(at, end, &move.id)
        if name.at[0] == c'b' and name.at[1] == c'y':
            saw[0] = SAW_BY
            return read_writer(at, end, move)
        if name.at[0] == c't' and name.at[1] == c'o':
            saw[0] = SAW_TO
            return read_text_or_null(at, end, &move.to)
    elif name.size == 4:
        if memcmp(name.at, b"base", 4) == 0:
            saw[0] = SAW_BASE
            return read_only_text(at, end, &move.base)
        if memcmp(name.at, b"from", 4) == 0:
            saw[0] = SAW_FROM
            return read_text_or_null(at, end, &move.from_)
        if memcmp(name.at, b"flow", 4) == 0:
            saw[0] = SAW_FLOW
            return read_text_or_null(at, end, &move.flow)
        if memcmp(name.at, b"kind", 4) == 0:
            saw[0] = SAW_KIND
            at = read_text_or_null(at, end, &text)
            return at if at != NULL and is_(text, b"proposal", 8) else NULL
    elif name.size == 5:
        if memcmp(name.at, b"state", 5) == 0:
            saw[0] = SAW_STATE
            return read_only_text(at, end, &move.state)
    elif name.size == 6:
        if memcmp(name.at, b"format", 6) == 0:
            saw[0] = SAW_FORMAT
            at = read_number(at, end, &number)
            return at if at != NULL and number == 1 else NULL
        if memcmp(name.at, b"covers", 6) == 0:
            saw[0] = SAW_COVERS
            return read_number(at, end, &move.covers)
        if memcmp(name.at, b"action", 6) == 0:
            saw[0] = SAW_ACTION
            return read_text_or_null(at, end, &text)
        if memcmp(name.at, b"reason", 6) == 0:
            saw[0] = SAW_REASON
            return read_text_or_null(at, end, &text)
    elif name.size == 7:
        if memcmp(name.at, b"version", 7) == 0:
            saw[0] = SAW_VERSION
            return read_number(at, end, &move.version)
    elif name.size == 9:
        if memcmp(name.at, b"operation", 9) == 0:
            saw[0] = SAW_OPERATION
            return read_text_or_null(at, end, &move.operation)
    elif name.size == 13:
        if memcmp(name.at, b"written_at_ms", 13) == 0:
            saw[0] = SAW_WRITTEN_AT
            return read_number(at, end, &number)
    return NULL


cdef bint read_move(const char *at, Py_ssize_t size, Move *move) noexcept nogil:
    """Whether this is a proposal with all fields of a plain move and no other than those known here."""
    cdef const char *end = at + size
    cdef Text name
    cdef unsigned int saw
    move.seen = 0
    move.operation.size = move.flow.size = NONE
    if size < 2 or at[0] != c'{':
        return False
    while True:
        at += 1  # the brace, or the comma
        if at >= end or at[0] != c'"':
            return False
        at = read_text(at + 1, end, &name)
        if at == NULL or at >= end or at[0] != c':':
            return False
        at = read_field(at + 1, end, name, move, &saw)
        if at == NULL or at >= end or move.seen & saw:
            return False
        move.seen |= saw
        if at[0] == c'}':
            return at + 1 == end and move.seen & WANTED == WANTED
        if at[0] != c',':
            return False


cdef bint ID_LETTERS[256]
for _letter in range(256):
    ID_LETTERS[_letter] = ID(chr(_letter)) is not None


cdef inline bint is_id(Text text) noexcept nogil:
    cdef Py_ssize_t index
    cdef bint fits_all = True
    if not 1 <= text.size <= LONGEST_ID:
        return False
    for index in range(text.size):  # to the end: that is faster than to leave at the first
        fits_all &= ID_LETTERS[<unsigned char>text.at[index]]
    return fits_all

# --- names ------------------------------------------------------------------------------------------------------------

cdef enum:
    PLACES = 2048
cdef enum:
    RANGE_SIZE = 22  # of `/0xLLLLLLLL_0xUUUUUUUU`
cdef const char *HEX = b"0123456789abcdef"
cdef list _names = [None] * PLACES  # the strings of NAMES, found by their bytes


cdef inline bint same_text(object string, Text text) noexcept:
    """Whether a str, or None, is this text."""
    if string is None:
        return text.size == NONE
    return (
        PyUnicode_GET_LENGTH(string) == text.size
        and PyUnicode_IS_ASCII(string)
        and memcmp(PyUnicode_DATA(string), text.at, text.size) == 0
    )


cdef inline bint is_hex(const char *at, long long number) noexcept nogil:
    cdef int digit
    for digit in range(8):
        if at[7 - digit] != HEX[number & 15]:
            return False
        number >>= 4
    return True


cdef bint ids_fit(object key, const Move *move) except -1:
    """Whether the base of a record is `KeyState.accepted_id`, and its own id is another."""
    cdef Text parent, range_
    cdef object accepted = read_attribute(&RECORD_ID, key)
    if accepted is None:
        return False
    if read_attribute(&DERIVED, key) is False:
        return same_text(accepted, move.base) and not same_text(accepted, move.id)
    if move.base.size <= RANGE_SIZE:  # a derived id is longer than any of a record
        return False
    parent.at, parent.size = move.base.at, move.base.size - RANGE_SIZE
    range_.at, range_.size = move.base.at + parent.size, RANGE_SIZE
    return (
        same_text(accepted, parent)
        and memcmp(range_.at, b"/0x", 3) == 0
        and is_hex(range_.at + 3, number_in(&LOWER, key))
        and memcmp(range_.at + 11, b"_0x", 3) == 0
        and is_hex(range_.at + 14, number_in(&UPPER, key))
    )


cdef inline object string_of(Text text):
    cdef object string = PyUnicode_New(text.size, 127)  # the reader takes nothing else
    memcpy(PyUnicode_DATA(string), text.at, text.size)
    return string


cdef object flow_of(Text text):
    cdef object word, flow
    if text.size == NONE:
        return None
    for word, flow in FLOWS:
        if is_(text, PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word)):
            return flow
    return string_of(text)


cdef object operation_of(Text text, object key):
    """Mostly that of the record before."""
    cdef object before
    if text.size == NONE:
        return None
    before = read_attribute(&OPERATION, key)
    return before if same_text(before, text) else string_of(text)


cdef object name_of(Text text):
    """The interned string of a broker or an incarnation; None if it is not known yet."""
    cdef uint64_t hash_ = text.size, part
    cdef Py_ssize_t index = 0
    cdef object name
    while index + 8 <= text.size:
        memcpy(&part, text.at + index, 8)
        hash_ = (hash_ ^ part) * 0x9E3779B97F4A7C15ULL
        hash_ ^= hash_ >> 32
        index += 8
    while index < text.size:
        hash_ = (hash_ ^ <unsigned char>text.at[index]) * 0x100000001B3ULL
        index += 1
    index = (hash_ ^ (hash_ >> 29)) % PLACES
    name = _names[index]
    if name is not None and same_text(name, text):
        return name
    name = _NAMES.get(string_of(text))
    if name is not None:
        _names[index] = name
    return name


cdef inline bint same(object one, object other):
    return one is other or one == other


cdef inline bint fits(int asked, object broker, object from_, object key):
    if asked == ACCEPTED_FROM:
        return same(broker, read_attribute(&FROM, key))
    if asked == ACCEPTED_TO:
        return same(broker, read_attribute(&TO, key))
    if asked == NO_ONE:
        return broker is None
    if asked == SOMEONE:
        return broker is not None
    if asked == NO_ONE_OR_OTHER:
        return broker is None or not same(broker, from_)
    return asked == ANYONE


cdef inline int number_of(object state):
    cdef int number
    for number in range(STATES):
        if STATES_AT[number] == <PyObject *>state:
            return number
    return NONE


cdef inline int number_named(Text text):
    cdef int number
    for number in range(STATES):
        if is_(text, STATE_NAMES_AT[number], STATE_NAME_SIZES[number]):
            return number
    return NONE

# --- the fold ---------------------------------------------------------------------------------------------------------

cdef bint take(object view, object place, object note, dict open_debts, dict writers, object key, bytes value, object offset) except -1:
    """Apply a record if it is a plain move; whether it was."""
    cdef Move parsed
    cdef Move *move = &parsed
    cdef int was, after
    cdef Row row
    cdef object from_ = None, to = None, broker, incarnation, writer, version, record_id, operation, flow
    cdef PyObject *found
    cdef PyObject *arguments[7]
    if PyBytes_GET_SIZE(value) > MOST_BYTES or not read_move(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value), move):
        return False
    if number_in(&LOWER, key) < 0:
        return False
    was, after = number_of(read_attribute(&STATE, key)), number_named(move.state)
    if was == NONE or after == NONE:
        return False
    row = ROWS[was][after]
    version = read_attribute(&VERSION, key)
    if not row.listed or move.version != PyLong_AsLongLong(version) + 1 or move.version > MOST:
        return False
    if not number_in(&SETTLED, key) <= move.covers <= MOST:
        return False
    if not (is_id(move.id) and ids_fit(key, move)):
        return False
    if row.need != NEED_NOTHING and (read_attribute(&TO, key) is None) != (row.need == NEED_NO_TO):
        return False
    if move.from_.size != NONE:
        from_ = name_of(move.from_)
        if from_ is None:
            return False
    if move.to.size != NONE:
        to = name_of(move.to)
        if to is None:
            return False
    if not (fits(row.from_, from_, from_, key) and fits(row.to, to, from_, key)):
        return False
    broker, incarnation = name_of(move.broker), name_of(move.incarnation)
    if broker is None or incarnation is None:
        return False
    found = PyDict_GetItemWithError(writers, incarnation)
    if found == NULL:
        return False
    writer = <object>found
    if not same(<object>PyTuple_GET_ITEM(writer, 0), broker):
        return False
    if open_debts and PyDict_Contains(open_debts, key):
        return False
    version, record_id = move.version, string_of(move.id)
    operation, flow = operation_of(move.operation, key), flow_of(move.flow)
    arguments[0], arguments[1] = <PyObject *>view, <PyObject *>key
    arguments[2] = PyTuple_GET_ITEM(STATE_OBJECTS, after)
    arguments[3], arguments[4], arguments[5] = <PyObject *>version, <PyObject *>from_, <PyObject *>to
    PyObject_Vectorcall(place, arguments, 6, NULL)
    arguments[2], arguments[3] = <PyObject *>record_id, <PyObject *>writer
    arguments[4], arguments[5], arguments[6] = <PyObject *>operation, <PyObject *>flow, <PyObject *>offset
    PyObject_Vectorcall(note, arguments, 7, NULL)
    write_attribute(&SETTLED, key, offset)
    return True


cdef enum:  # how many records ahead something is fetched into the processor's caches, where hardly anything of it is
    RECORDS_AHEAD = 12
    VALUES_AHEAD = 8
    KEYS_AHEAD = 4


cdef inline void fetch_all(const void *at, Py_ssize_t size) noexcept:
    cdef Py_ssize_t line
    for line in range(0, size, 64):
        fetch_ahead(<const char *>at + line)


cdef inline look_ahead(dict keys, list records, Py_ssize_t index, Py_ssize_t count):
    cdef PyObject *record
    cdef PyObject *found
    if index + RECORDS_AHEAD < count:
        fetch_all(PyList_GET_ITEM(records, index + RECORDS_AHEAD), 72)
    if index + VALUES_AHEAD < count:
        record = PyList_GET_ITEM(records, index + VALUES_AHEAD)
        fetch_ahead(PyTuple_GET_ITEM(<object>record, 2))
        fetch_all(PyTuple_GET_ITEM(<object>record, 4), 128)
        fetch_all(PyTuple_GET_ITEM(<object>record, 5), 448)
    if index + KEYS_AHEAD < count:
        found = PyDict_GetItemWithError(keys, <object>PyTuple_GET_ITEM(<object>PyList_GET_ITEM(records, index + KEYS_AHEAD), 4))
        if found != NULL:
            fetch_all(found, 256)


def take_plain_moves(view, list records not None, Py_ssize_t first, long long position, long long end):
    """See `statechannel.protocol.bulk_fold`."""
    cdef dict keys = view.keys, open_debts = view.ledger.open, writers = view.writers
    cdef object place = type(view).place, note = type(view).note
    cdef Py_ssize_t index = first, count = PyList_GET_SIZE(records)
    cdef PyObject *found
    cdef object record, value, offset, last = None
    try:
        while index < count:
            look_ahead(keys, records, index, count)
            record = <object>PyList_GET_ITEM(records, index)
            offset = <object>PyTuple_GET_ITEM(record, 2)
            if position >= 0 and (PyLong_AsLongLong(offset) != position or position >= end):
                break
            value = <object>PyTuple_GET_ITEM(record, 5)
            found = PyDict_GetItemWithError(keys, <object>PyTuple_GET_ITEM(record, 4))
            if found == NULL or not PyBytes_CheckExact(value) or <PyObject *>Py_TYPE(<object>found) != KEY_STATE:
                break
            if not take(view, place, note, open_debts, writers, <object>found, <bytes>value, offset):
                break
            last = offset
            index += 1
            if position >= 0:
                position += 1
    finally:
        if last is not None:
            view.applied = last
    return index
