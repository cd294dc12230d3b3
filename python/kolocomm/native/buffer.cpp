// SPDX-License-Identifier: Apache-2.0
//
// Arrays of Python as memory with a type. What cannot be used as it is, is refused with a way out; nothing is
// copied.
#include "native.hpp"

#include <nanobind/ndarray.h>

#include <cstring>

namespace kolocomm
{
namespace
{

struct TypeName {
    kolo_type_t type;
    const char *name;
};
const TypeName names[] = {
    {KOLO_INT8, "int8"},
    {KOLO_UINT8, "uint8"},
    {KOLO_INT32, "int32"},
    {KOLO_UINT32, "uint32"},
    {KOLO_INT64, "int64"},
    {KOLO_UINT64, "uint64"},
    {KOLO_FLOAT16, "float16"},
    {KOLO_BFLOAT16, "bfloat16"},
    {KOLO_FLOAT32, "float32"},
    {KOLO_FLOAT64, "float64"},
    {KOLO_INT16, "int16"},
    {KOLO_UINT16, "uint16"},
    {KOLO_BOOL, "bool"},
    {KOLO_FLOAT8_E4M3, "float8_e4m3fn"},
    {KOLO_FLOAT8_E5M2, "float8_e5m2"},
};

// kind: i, u, f, b as numpy has it; false: Kolo has no such type.
bool find_type(char kind, size_t bytes, kolo_type_t *type)
{
    static const struct {
        char kind;
        size_t bytes;
        kolo_type_t type;
    } rows[] = {{'f', 4, KOLO_FLOAT32}, {'f', 8, KOLO_FLOAT64}, {'i', 4, KOLO_INT32},  {'i', 8, KOLO_INT64},
                {'u', 1, KOLO_UINT8},   {'f', 2, KOLO_FLOAT16}, {'i', 1, KOLO_INT8},   {'u', 4, KOLO_UINT32},
                {'u', 8, KOLO_UINT64},  {'i', 2, KOLO_INT16},   {'u', 2, KOLO_UINT16}, {'b', 1, KOLO_BOOL}};
    for (const auto &row : rows)
        if (row.kind == kind && row.bytes == bytes) {
            *type = row.type;
            return true;
        }
    return false;
}

char kind_of(char letter)
{
    if (strchr("bhilqn", letter)) return 'i';
    if (strchr("BHILQNc", letter)) return 'u';
    if (strchr("efd", letter)) return 'f';
    return letter == '?' ? 'b' : 0;
}

[[noreturn]] void refuse_type(const char *what, const std::string &type)
{
    if (type.find('>') != std::string::npos)
        refuse(words("%s has bytes in the other order (%s): pass %s.astype(%s.dtype.newbyteorder('='))", what,
                     type.c_str(), what, what));
    if (type.find('Z') != std::string::npos || type.find("complex") != std::string::npos)
        refuse(
            words("%s has complex elements (%s), which Kolo does not have: pass a view of its real and imaginary "
                  "parts, x.view(x.real.dtype)",
                  what, type.c_str()));
    refuse(words("%s has elements of type %s; Kolo has bool, int8 to int64, uint8 to uint64, float16, bfloat16, "
                 "float32, float64, float8_e4m3fn and float8_e5m2",
                 what, type.c_str()));
}

[[noreturn]] void refuse_gaps(const char *what)
{
    refuse(words("%s is not contiguous (rows one behind the other, C order): pass numpy.ascontiguousarray(x) or "
                 "x.contiguous(); for a result, copy it back after the call",
                 what));
}

[[noreturn]] void refuse_read_only(const char *what)
{
    refuse(words("%s is read-only, and the result is to be written there: pass a writable copy", what));
}

struct ManagedTensor { // DLPack's, of version 0
    nb::dlpack::dltensor tensor;
    void *context;
    void (*deleter)(ManagedTensor *self);
};

bool find_dlpack_type(const nb::dlpack::dtype &t, kolo_type_t *type)
{
    static const char kinds[] = {'i', 'u', 'f'};
    if (t.lanes != 1) return false;
    if (t.code == 4 && t.bits == 16)
        *type = KOLO_BFLOAT16;
    else if (t.code == 10)
        *type = KOLO_FLOAT8_E4M3;
    else if (t.code == 12)
        *type = KOLO_FLOAT8_E5M2;
    else if (t.code == 6)
        *type = KOLO_BOOL;
    else
        return t.code < 3 && find_type(kinds[t.code], t.bits / 8, type);
    return true;
}

// nb::str() of the attribute itself would want that to be a str.
std::string dtype_name(nb::handle array)
{
    nb::object dtype = array.attr("dtype");
    return nb::str(nb::handle(dtype)).c_str();
}

bool rows_follow(const nb::dlpack::dltensor &t)
{
    int64_t want = 1;
    if (!t.strides) return true;
    for (int i = 0; i < t.ndim; i++)
        if (t.shape[i] == 0) return true;
    for (int i = t.ndim - 1; i >= 0; i--) {
        if (t.shape[i] != 1 && t.strides[i] != want) return false;
        want *= t.shape[i];
    }
    return true;
}

} // namespace

double limit_of(nb::handle timeout)
{
    if (timeout.is_none()) return 1e18;
    double seconds = PyFloat_AsDouble(timeout.ptr());
    if (seconds == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        refuse(
            words("timeout is %.80s; seconds are needed, 0 or more, or None: no limit", nb::repr(timeout).c_str()));
    }
    if (!(seconds >= 0)) refuse(words("timeout is %g: it is in seconds, 0 or more; None is no limit", seconds));
    return seconds > 1e15 ? 1e18 : seconds * 1000;
}

const char *type_name(kolo_type_t type)
{
    for (const auto &n : names)
        if (n.type == type) return n.name;
    return "?";
}

// By the buffer protocol; false: the object does not speak it (for this type).
bool Buffer::from_protocol(nb::handle array, const char *what, bool writable)
{
    if (!PyObject_CheckBuffer(array.ptr())) return false;
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_RECORDS_RO) != 0) {
        PyErr_Clear(); // a type that the protocol has no letter for, like bfloat16
        return false;
    }
    has_view_ = true;
    const char *format = view_.format ? view_.format : "B";
    const char *letter = *format == '<' || *format == '=' || *format == '@' ? format + 1 : format;
    if (letter[1] != 0 || !find_type(kind_of(*letter), (size_t)view_.itemsize, &type)) {
        const bool said = format[1] == 0 || !nb::hasattr(array, "dtype");
        refuse_type(what, said ? std::string(format) : dtype_name(array)); // numpy's "<U1", not the protocol's "1w"
    }
    if (!PyBuffer_IsContiguous(&view_, 'C')) refuse_gaps(what);
    if (writable && view_.readonly) refuse_read_only(what);
    data = view_.buf, count = (size_t)(view_.len / view_.itemsize);
    return true;
}

namespace
{

bool says(nb::handle array, const char *method)
{
    return nb::hasattr(array, method) && nb::cast<bool>(array.attr(method)());
}

// DLPack has no word for it: the memory holds the negative of what torch shows.
void refuse_negative(nb::handle array, const char *what)
{
    if (says(array, "is_neg"))
        refuse(words("%s is a view that torch negates when it is read: pass %s.resolve_neg()", what, what));
}

// Why torch (or another library) does not hand out the memory of an array, and what to pass instead.
[[noreturn]] void refuse_hidden(nb::handle array, const char *what, const nb::python_error &why)
{
    const char *instead = "an array with memory of its own";
    std::string layout =
        nb::hasattr(array, "layout") ? nb::cast<std::string>(nb::str(nb::object(array.attr("layout")))) : "";
    if (layout.find("sparse") != std::string::npos)
        instead = "its to_dense(), or its indices and values one after the other (torch.distributed reduces sparse "
                  "tensors)";
    else if (nb::hasattr(array, "requires_grad") && nb::cast<bool>(array.attr("requires_grad")))
        instead = "x.detach(), which shares the memory: the call takes no part in autograd";
    else if (says(array, "is_conj"))
        instead = "x.resolve_conj()";
    else if (nb::hasattr(array, "is_meta") && nb::cast<bool>(array.attr("is_meta")))
        instead = "a tensor of a device: one of \"meta\" has no memory";
    refuse(words("%s cannot be used as it is (%s): pass %s", what,
                 nb::cast<std::string>(nb::str(why.value())).c_str(), instead));
}

} // namespace

bool Buffer::from_dlpack(nb::handle array, const char *what, bool writable)
{
    if (!nb::hasattr(array, "__dlpack__")) return false;
    std::string where = nb::cast<std::string>(nb::handle((PyObject *)Py_TYPE(array.ptr())).attr("__module__"));
    if (writable && where.compare(0, 3, "jax") == 0)
        refuse(words(
            "%s is an array of JAX, which cannot be written: pass a numpy array and jax.numpy.asarray() it", what));
    nb::object capsule;
    refuse_negative(array, what);
    try {
        if (nb::cast<int>(nb::object(array.attr("__dlpack_device__")())[0]) == 2)
            capsule = array.attr("__dlpack__")(nb::arg("stream") = -1);
        else
            capsule = array.attr("__dlpack__")();
    } catch (nb::python_error &e) {
        refuse_hidden(array, what, e);
    }
    auto *managed = (ManagedTensor *)PyCapsule_GetPointer(capsule.ptr(), "dltensor");
    if (!managed) throw nb::python_error();
    const nb::dlpack::dltensor &t = managed->tensor;
    owner_ = capsule; // its own end frees the tensor
    if (!find_dlpack_type(t.dtype, &type)) refuse_type(what, t.dtype.code == 5 ? "complex" : dtype_name(array));
    if (!rows_follow(t)) refuse_gaps(what);
    count = 1;
    for (int i = 0; i < t.ndim; i++) count *= (size_t)t.shape[i];
    data = (char *)t.data + t.byte_offset;
    if (t.device.device_type == 2)
        device = t.device.device_id;
    else if (t.device.device_type != 1 && t.device.device_type != 3)
        refuse(words("%s is on a device of kind %d of DLPack; Kolo knows memory of the host and of NVIDIA GPUs",
                     what, (int)t.device.device_type));
    return true;
}

bool Buffer::from_cuda(nb::handle array, const char *what)
{
    if (!nb::hasattr(array, "__cuda_array_interface__")) return false;
    nb::dict d = nb::cast<nb::dict>(array.attr("__cuda_array_interface__"));
    std::string code = nb::cast<std::string>(d["typestr"]);
    if (code.size() < 3 || code[0] == '>' || !find_type(code[1], (size_t)atoi(code.c_str() + 2), &type))
        refuse_type(what, code);
    if (d.contains("strides") && !d["strides"].is_none()) refuse_gaps(what);
    count = 1;
    for (nb::handle n : nb::cast<nb::tuple>(d["shape"])) count *= nb::cast<size_t>(n);
    data = (void *)nb::cast<uintptr_t>(nb::cast<nb::tuple>(d["data"])[0]);
    device = 0; // the interface does not say which GPU; the library looks
    owner_ = nb::borrow(array);
    return true;
}

Buffer::Buffer(nb::handle array, const char *what, bool writable)
{
    static const char *const others[] = {"bfloat16", "float8_e4m3fn", "float8_e5m2"};
    if (array.is_none()) refuse(words("%s is None: an array is needed here", what));
    there_ = true;
    if (from_protocol(array, what, writable)) return;
    // numpy with types of ml_dtypes: only their names tell.
    if (nb::hasattr(array, "dtype") && PyObject_CheckBuffer(array.ptr())) {
        std::string dtype = dtype_name(array);
        for (const char *name : others)
            if (dtype == name) {
                owner_ = array.attr("view")(dtype == "bfloat16" ? "uint16" : "uint8");
                if (!from_protocol(owner_, what, writable)) break;
                type = dtype == "bfloat16"  ? KOLO_BFLOAT16
                       : dtype == others[1] ? KOLO_FLOAT8_E4M3
                                            : KOLO_FLOAT8_E5M2;
                return;
            }
        refuse_type(what, dtype);
    }
    if (from_dlpack(array, what, writable) || from_cuda(array, what)) return;
    refuse(words(
        "%s is a %s, which has no memory that Kolo can use: pass an array (numpy, torch, or anything with the "
        "buffer protocol, DLPack or __cuda_array_interface__)",
        what, nb::cast<std::string>(array.type().attr("__name__")).c_str()));
}

Buffer Buffer::maybe(nb::handle array, const char *what, bool writable)
{
    return array.is_none() ? Buffer() : Buffer(array, what, writable);
}

void Buffer::release()
{
    if (has_view_) PyBuffer_Release(&view_);
    has_view_ = false;
}

Buffer::Buffer(Buffer &&other) noexcept
{
    *this = std::move(other);
}

Buffer &Buffer::operator=(Buffer &&other) noexcept
{
    release();
    data = other.data, count = other.count, type = other.type, device = other.device;
    there_ = other.there_, view_ = other.view_, has_view_ = other.has_view_;
    other.has_view_ = false;
    owner_ = std::move(other.owner_);
    return *this;
}

Buffer::~Buffer()
{
    release();
}

} // namespace kolocomm
