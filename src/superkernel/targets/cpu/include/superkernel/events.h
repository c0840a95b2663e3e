// events.h: set and wait for a super kernel's external events from C or C++. The word's address is Event.address in Python.
#pragma once

#include <stdint.h>

static inline void sk_event_set(int64_t* word) { __atomic_store_n(word, (int64_t)1, __ATOMIC_RELEASE); }
static inline void sk_event_clear(int64_t* word) { __atomic_store_n(word, (int64_t)0, __ATOMIC_RELEASE); }
static inline int sk_event_is_set(const int64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE) == 1; }
