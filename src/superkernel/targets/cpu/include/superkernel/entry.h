// entry.h: included once by the emitted entry: the core's steps, and the functions that kernel.h declares.
#pragma once

#ifdef SK_CHECK
#include "check_calls.h"
#endif
#include "core.h"
#include "kernel.h"
#include "table.h"

namespace sk {
// the core that runs on this thread
static thread_local Core* current = nullptr;
}  // namespace sk

extern "C" {
int sk_block_idx(void) { return sk::current->block(); }
int sk_block_num(void) { return sk::current->blocks(); }
void sk_sync_all(void) { sk::current->sync_all(); }
void sk_wait_previous(void) { sk::current->wait_previous(); }
void sk_set_next(void) { sk::current->set_next(); }
void sk_fail(const char* message) { sk::current->fail(message); }
}
