/* The two hottest loops of rmqd.wire, in C: the records of a response, and the JSON header of a command.

They accept only plain bytes, as brokers nearly always write them. Python gets the rest, and decides what is valid.
tests/wire/test_core.py and the fuzzer compare both. Check each read against the end of the bytes first. */

#define Py_LIMITED_API 0x030B0000 /* 3.11: the same binary works with each later version of Python */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* CRC-32 as in zlib, eight bytes in each step. zlib itself would be one more requirement of the build. */

static uint32_t crc_table[8][256];

static void fill_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (int ahead = 1; ahead < 8; ahead++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_table[ahead - 1][byte];
            crc_table[ahead][byte] = crc >> 8 ^ crc_table[0][crc & 0xFF];
        }
}

static uint32_t crc32_of(const uint8_t *at, size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; size -= 8, at += 8) {
        crc ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc_table[7][crc & 0xFF] ^ crc_table[6][crc >> 8 & 0xFF] ^ crc_table[5][crc >> 16 & 0xFF]
            ^ crc_table[4][crc >> 24] ^ crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]]
            ^ crc_table[0][at[7]];
    }
    while (size--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *at++) & 0xFF];
    return ~crc;
}

static uint32_t uint32_at(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int64_t int64_at(const uint8_t *at)
{
    return (int64_t)((uint64_t)uint32_at(at) << 32 | uint32_at(at + 4));
}

/* Records. record.py has their layout. */

enum { MIN_RECORD = 91, BODY_AT = 88, MAGIC_V1 = 0xDAA320A7 - 0x100000000 };
enum { BLOCK, FINISHED, START, BODY_START, BODY_END, QUEUE_OFFSET, STORE_TIMESTAMP, FIELDS };

/* Return the size of a plain record at `at`; 0 if it is not plain. The body ends at `body_end`, counted from `at`. */
static size_t plain_record(const uint8_t *at, size_t left, uint32_t unusual_flags, size_t *body_end)
{
    if (left < MIN_RECORD)
        return 0;
    uint64_t size = uint32_at(at), end = BODY_AT + (uint64_t)uint32_at(at + BODY_AT - 4);
    if (size > left || (int32_t)uint32_at(at + 4) != MAGIC_V1 || uint32_at(at + 36) & unusual_flags)
        return 0;
    if (end + 1 > size)
        return 0;
    uint64_t properties = end + 1 + at[end]; /* after the topic and its length */
    if (properties + 2 > size || properties + 2 + (at[properties] << 8 | at[properties + 1]) != size)
        return 0;
    if ((crc32_of(at + BODY_AT, end - BODY_AT) ^ uint32_at(at + 8)) & 0x7FFFFFFF)
        return 0;
    *body_end = end;
    return size;
}

/* Set the fields of a new message by the descriptors of its slots. Takes over the references to the five numbers. */
static int fill(PyObject *message, PyObject *const *slots, descrsetfunc const *set, PyObject *const *values)
{
    int failed = 0;
    for (int field = 0; field < FIELDS; field++) {
        failed = failed || !values[field] || set[field](slots[field], message, values[field]) < 0;
        if (field >= START)
            Py_XDECREF(values[field]);
    }
    return failed ? -1 : 0;
}

static PyObject *frame_plain(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 7 || !PyType_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "frame_plain takes a type and six more arguments");
    PyTypeObject *type = (PyTypeObject *)args[0];
    PyObject *block = args[2], *messages = args[5], *slots[FIELDS];
    descrsetfunc set[FIELDS];
    for (int field = 0; field < FIELDS; field++) {
        if (!(slots[field] = PyTuple_GetItem(args[1], field)))
            return NULL;
        if (!(set[field] = (descrsetfunc)PyType_GetSlot(Py_TYPE(slots[field]), Py_tp_descr_set)))
            return PyErr_Format(PyExc_TypeError, "a slot of a message cannot be set");
    }
    char *data;
    Py_ssize_t size, at = PyLong_AsSsize_t(args[4]);
    uint32_t unusual_flags = (uint32_t)PyLong_AsUnsignedLongMask(args[6]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[3], &data, &size) < 0)
        return NULL;
    if (at < 0)
        return PyErr_Format(PyExc_ValueError, "the records start before the first byte");
    int64_t runs = 0, following = -1;
    while (at < size) {
        const uint8_t *record = (const uint8_t *)data + at;
        size_t body_end, taken = plain_record(record, (size_t)(size - at), unusual_flags, &body_end);
        if (!taken)
            break;
        int64_t queue_offset = int64_at(record + 20);
        if (queue_offset == INT64_MAX)
            break; /* the offset after it is no longer an int64_t */
        PyObject *message = PyType_GenericAlloc(type, 0);
        if (!message)
            return NULL;
        PyObject *values[FIELDS] = {
            [BLOCK] = block,
            [FINISHED] = Py_False,
            [START] = PyLong_FromSsize_t(at),
            [BODY_START] = PyLong_FromSsize_t(at + BODY_AT),
            [BODY_END] = PyLong_FromSsize_t(at + (Py_ssize_t)body_end),
            [QUEUE_OFFSET] = PyLong_FromLongLong(queue_offset),
            [STORE_TIMESTAMP] = PyLong_FromLongLong(int64_at(record + 56)),
        };
        int failed = fill(message, slots, set, values) < 0 || PyList_Append(messages, message) < 0;
        Py_DECREF(message);
        if (failed)
            return NULL;
        runs += queue_offset != following;
        following = queue_offset + 1;
        at += (Py_ssize_t)taken;
    }
    return Py_BuildValue("nLL", at, (long long)runs, (long long)following);
}

/* Headers. The functions return NULL without an exception if the text is not plain. */

typedef struct {
    const char *at, *end;
} Text;

static int take(Text *text, char expected)
{
    if (text->at == text->end || *text->at != expected)
        return 0;
    text->at++;
    return 1;
}

/* Take a string of ASCII without escapes. Returns its start. */
static const char *plain_string(Text *text, Py_ssize_t *size)
{
    if (!take(text, '"'))
        return NULL;
    const char *start = text->at;
    while (text->at < text->end && *text->at >= ' ' && *text->at <= '~' && *text->at != '"' && *text->at != '\\')
        text->at++;
    *size = text->at - start;
    return take(text, '"') ? start : NULL;
}

static PyObject *string_value(Text *text)
{
    Py_ssize_t size;
    const char *start = plain_string(text, &size);
    return start ? PyUnicode_FromStringAndSize(start, size) : NULL;
}

/* Take an integer from 0 to 2**31 - 1. */
static PyObject *integer_value(Text *text)
{
    const char *start = text->at;
    int64_t value = 0;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9' && text->at - start < 10)
        value = value * 10 + (*text->at++ - '0');
    Py_ssize_t digits = text->at - start;
    if (!digits || (digits > 1 && *start == '0') || value > INT32_MAX)
        return NULL;
    return PyLong_FromLongLong(value);
}

static PyObject *object_of_strings(Text *text)
{
    PyObject *fields = take(text, '{') ? PyDict_New() : NULL;
    if (!fields || take(text, '}'))
        return fields;
    do {
        PyObject *name = string_value(text), *value = name && take(text, ':') ? string_value(text) : NULL;
        int failed = !value || PyDict_SetItem(fields, name, value) < 0;
        Py_XDECREF(name);
        Py_XDECREF(value);
        if (failed)
            goto failed;
    } while (take(text, ','));
    if (take(text, '}'))
        return fields;
failed:
    Py_DECREF(fields);
    return NULL;
}

enum { CODE, OPAQUE, FLAG, VERSION, EXT_FIELDS, REMARK, LANGUAGE, OTHER, MEMBERS };
static const char *const member_names[OTHER] = {"code", "opaque", "flag", "version", "extFields", "remark", "language"};

/* Take one member. Returns 0, or -1 if it is not plain. */
static int take_member(Text *text, PyObject **members)
{
    Py_ssize_t size;
    const char *name = plain_string(text, &size);
    if (!name || !take(text, ':'))
        return -1;
    int member = 0;
    while (member < OTHER && (strlen(member_names[member]) != (size_t)size || memcmp(member_names[member], name, size)))
        member++;
    PyObject *before = members[member]; /* the last of two equal names wins */
    members[member] = member <= VERSION ? integer_value(text)
        : member == EXT_FIELDS          ? object_of_strings(text)
                                        : string_value(text);
    Py_XDECREF(before);
    return members[member] ? 0 : -1;
}

static PyObject *decode_header(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    char *payload;
    Py_ssize_t size;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "decode_header takes two arguments");
    Py_ssize_t end = PyLong_AsSsize_t(args[1]);
    if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[0], &payload, &size) < 0)
        return NULL;
    if (end < 4 || end > size)
        return PyErr_Format(PyExc_ValueError, "the header ends outside of the frame");
    Text text = {payload + 4, payload + end};
    PyObject *members[MEMBERS] = {NULL}, *result = NULL;
    int is_plain = take(&text, '{');
    if (is_plain)
        do
            is_plain = take_member(&text, members) == 0;
        while (is_plain && take(&text, ','));
    is_plain = is_plain && take(&text, '}') && text.at == text.end && members[CODE] && members[OPAQUE];
    if (!is_plain && !PyErr_Occurred()) {
        result = Py_NewRef(Py_None);
    } else if (is_plain && (result = PyTuple_New(OTHER))) {
        for (int member = 0; member < OTHER; member++)
            PyTuple_SetItem(result, member, Py_NewRef(members[member] ? members[member] : Py_None));
    }
    for (int member = 0; member < MEMBERS; member++)
        Py_XDECREF(members[member]);
    return result;
}

static PyMethodDef functions[] = {
    {"frame_plain", (PyCFunction)(void (*)(void))frame_plain, METH_FASTCALL, NULL},
    {"decode_header", (PyCFunction)(void (*)(void))decode_header, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static int start_module(PyObject *module)
{
    fill_crc_table();
    PyObject *source = PyLong_FromUnsignedLong(SOURCE_CRC); /* of this file: rmqd/wire/core.py */
    int status = PyModule_AddObjectRef(module, "source_crc", source);
    Py_XDECREF(source);
    return status;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, start_module}, {0, NULL}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "native", NULL, 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_native(void) { return PyModuleDef_Init(&definition); }
