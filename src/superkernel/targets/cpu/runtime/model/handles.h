// handles.h: what callers hold: small records that outlive what they stand for, so that a closed one is recognised.
#pragma once

#include "open_model.h"
#include "run_context.h"

struct sk_model {
    uint32_t kind;
    sk::model::OpenModel* target;  // null: closed
};

struct sk_context {
    uint32_t kind;
    sk::model::RunContext* target;  // null: destroyed
};

namespace sk::model {

void check_forks_are_watched();

sk_model* add_handle(std::unique_ptr<OpenModel> model);
sk_context* add_handle(std::unique_ptr<RunContext> context);
// The record stays, for a later handle; the caller deletes what it stood for.
std::unique_ptr<OpenModel> remove_handle(sk_model* handle);
std::unique_ptr<RunContext> remove_handle(sk_context* handle);

OpenModel& opened(const sk_model* handle);      // refuses null and closed ones
RunContext& opened(const sk_context* handle);

void delete_closed_handles() noexcept;  // when the library is unloaded

}  // namespace sk::model
