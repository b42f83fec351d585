# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Fetched messages into records, compiled: see `convert` in `statechannel.kafka.reader`."""

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject, Py_TYPE
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM

from confluent_kafka import Message

from statechannel.protocol.log import RecordRead

cdef extern from *:
    """
    /* The C function of a method without arguments; NULL if it is another kind of method. */
    static PyCFunction function_of(PyObject *descriptor) {
        PyMethodDef *method;
        if (!Py_IS_TYPE(descriptor, &PyMethodDescr_Type))
            return NULL;
        method = ((PyMethodDescrObject *)descriptor)->d_method;
        return method->ml_flags == METH_NOARGS ? method->ml_meth : NULL;
    }

    static int is_plain_tuple(PyTypeObject *type) {
        return PyType_IsSubtype(type, &PyTuple_Type) && type->tp_basicsize == PyTuple_Type.tp_basicsize
               && type->tp_itemsize == PyTuple_Type.tp_itemsize;
    }

    /* An empty tuple of this class, to be filled. */
    static inline PyObject *new_tuple(PyTypeObject *type, Py_ssize_t size) {
        PyObject *made = type->tp_alloc(type, size);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL)
            ((PyTupleObject *)made)->ob_hash = -1;
    #endif
        return made;
    }

    #define call(function, owner) (function)((owner), NULL)
    """
    ctypedef void *PyCFunction
    PyCFunction function_of(object)
    bint is_plain_tuple(PyTypeObject *)
    object new_tuple(PyTypeObject *, Py_ssize_t)
    object call(PyCFunction, object)

cdef extern from "Python.h":
    long PyLong_AsLong(object) except? -1
    long long PyLong_AsLongLong(object) except? -1

cdef PyTypeObject *MESSAGE = <PyTypeObject *>Message
cdef PyTypeObject *RECORD = <PyTypeObject *>RecordRead
cdef PyCFunction TOPIC = function_of(Message.topic)
cdef PyCFunction PARTITION = function_of(Message.partition)
cdef PyCFunction ERROR = function_of(Message.error)
cdef PyCFunction OFFSET = function_of(Message.offset)
cdef PyCFunction TIMESTAMP = function_of(Message.timestamp)
cdef PyCFunction KEY = function_of(Message.key)
cdef PyCFunction VALUE = function_of(Message.value)

if not (is_plain_tuple(RECORD) and TOPIC and PARTITION and ERROR and OFFSET and TIMESTAMP and KEY and VALUE):
    raise ImportError("the accelerator is made for another version of confluent-kafka, or of the core")


cdef inline void put(object record, Py_ssize_t index, object value):
    Py_INCREF(value)  # the place takes it over
    PyTuple_SET_ITEM(record, index, value)


def convert(list batch not None, dict roles not None):
    """See `statechannel.kafka.reader`."""
    cdef Py_ssize_t index, count = PyList_GET_SIZE(batch), size_bytes = 0
    cdef object message, name = None, number = None, topic = None, record, pair, stamp, time = None, value
    cdef long partition = 0
    cdef list records = []
    for index in range(count):
        message = <object>PyList_GET_ITEM(batch, index)
        if Py_TYPE(message) != MESSAGE or call(ERROR, message) is not None:
            return None
        if index == 0:
            name, number = call(TOPIC, message), call(PARTITION, message)
            topic, partition = roles[name], PyLong_AsLong(number)
        elif PyLong_AsLong(call(PARTITION, message)) != partition or call(TOPIC, message) != name:
            return None
        pair = call(TIMESTAMP, message)
        stamp = <object>PyTuple_GET_ITEM(pair, 1)
        if time is None or PyLong_AsLongLong(stamp) != PyLong_AsLongLong(time):
            time = stamp  # else one number for all of them: those written together have the same
        value = call(VALUE, message)
        if PyBytes_CheckExact(value):
            size_bytes += PyBytes_GET_SIZE(value)
        record = new_tuple(RECORD, 6)
        put(record, 0, topic)
        put(record, 1, number)
        put(record, 2, call(OFFSET, message))
        put(record, 3, time)
        put(record, 4, call(KEY, message))
        put(record, 5, value)
        records.append(record)
    return name, number, records, size_bytes
