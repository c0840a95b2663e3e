// bind.cpp: numpy arrays -> addresses and sizes, checked, without a Python call per fact. Called with the GIL held.
//
// Python's own functions come as pointers, so that this library needs neither its headers nor its symbols.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

// numpy's array interface (version 3), as found behind __array_struct__
struct ArrayInterface {
    int two;
    int nd;
    char typekind;
    int itemsize;
    int flags;
    intptr_t* shape;
    intptr_t* strides;
    void* data;
    void* description;
};

constexpr int kContiguous = 0x1;
constexpr int kNotSwapped = 0x200;
constexpr int kWriteable = 0x400;

void* (*list_item)(void* list, intptr_t index) = nullptr;         // PyList_GetItem
void* (*capsule_pointer)(void* capsule, const char* name) = nullptr;  // PyCapsule_GetPointer

}  // namespace

extern "C" {

// What is wanted of one name.
struct Wanted {
    int64_t elements;  // < 0: any
    int32_t itemsize;  // 0: any
    char typekind;     // 0: any
    uint8_t written;
    uint8_t memory;  // 0: a scalar
};

void sk_bind_python(void* get_item, void* get_pointer) {
    list_item = reinterpret_cast<decltype(list_item)>(get_item);
    capsule_pointer = reinterpret_cast<decltype(capsule_pointer)>(get_pointer);
}

// Fill values and sizes of the names listed in `places` from their capsules. -1: all fit; otherwise the place that does not.
int32_t sk_bind_arrays(void* capsules, const int32_t* places, int32_t count, const Wanted* wanted, uint64_t* values,
                       int64_t* sizes) {
    for (int32_t i = 0; i < count; ++i) {
        const int32_t place = places[i];
        const Wanted& want = wanted[place];
        const auto* array = static_cast<const ArrayInterface*>(capsule_pointer(list_item(capsules, i), nullptr));
        if (array == nullptr || array->two != 2) return place;
        int64_t elements = 1;
        for (int d = 0; d < array->nd; ++d) elements *= array->shape[d];
        const bool fits = (want.elements < 0 || elements == want.elements) &&
                          (want.itemsize == 0 || array->itemsize == want.itemsize) &&
                          (want.typekind == 0 || array->typekind == want.typekind) && array->typekind != 'O' &&
                          (array->flags & kContiguous) != 0 && (array->flags & kNotSwapped) != 0 &&
                          (want.written == 0 || (array->flags & kWriteable) != 0);
        if (!fits) return place;
        values[place] = reinterpret_cast<uint64_t>(array->data);
        sizes[place] = elements * array->itemsize;
    }
    return -1;
}

// 1 if two names share memory and one of them is written.
int32_t sk_bind_overlap(int32_t count, const Wanted* wanted, const uint64_t* values, const int64_t* sizes) {
    thread_local std::vector<int32_t> order;
    order.clear();
    for (int32_t i = 0; i < count; ++i) {
        if (wanted[i].memory != 0 && sizes[i] > 0) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [values](int32_t a, int32_t b) { return values[a] < values[b]; });
    uint64_t reach = 0, written_reach = 0;
    for (const int32_t i : order) {
        if (values[i] < written_reach || (wanted[i].written != 0 && values[i] < reach)) return 1;
        const uint64_t end = values[i] + uint64_t(sizes[i]);
        reach = std::max(reach, end);
        if (wanted[i].written != 0) written_reach = std::max(written_reach, end);
    }
    return 0;
}

}  // extern "C"
