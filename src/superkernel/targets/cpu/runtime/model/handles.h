// handles.h: what callers hold: small records that outlive what they stand for, so that a closed one is recognised.
#pragma once

#include <atomic>

#include "open_model.h"
#include "run_context.h"

struct sk_model {
    uint32_t kind;
    sk::model::OpenModel* target;  // null: closed
};

struct sk_context {
    uint32_t kind;
    std::atomic<bool> busy{false};  // a thread runs in it, or destroys it
    bool torn;                      // in the child of a fork: the thread that was running in it exists in the parent only
    sk::model::RunContext* target;  // null: destroyed
};

namespace sk::model {

void check_forks_are_watched();

sk_model* add_handle(std::unique_ptr<OpenModel> model);
sk_context* add_handle(std::unique_ptr<RunContext> context);

OpenModel& opened(const sk_model* handle);  // refuses null and closed ones
ModelUse use(const sk_model* handle);
void close_handle(sk_model* handle);        // refused while it is used
void destroy_handle(sk_context* handle);    // refused while a thread runs in it

// Held by the thread that runs in a context, or destroys it; refused while another one does.
class Turn {
  public:
    explicit Turn(sk_context* context, bool torn_as_well = false);
    ~Turn() { context_->busy.store(false, std::memory_order_release); }
    Turn(const Turn&) = delete;
    RunContext* operator->() const { return context_->target; }
    RunContext& operator*() const { return *context_->target; }

  private:
    sk_context* const context_;
};

void delete_closed_handles() noexcept;  // when the library is unloaded

}  // namespace sk::model
