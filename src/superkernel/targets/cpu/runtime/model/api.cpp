// api.cpp: the functions of model.h: checks of their arguments, and errors as codes and sentences.
#include <algorithm>

#include "failure.h"
#include "handles.h"
#include "held_folder.h"
#include "package_folder.h"
#include "python_call.h"

using namespace sk::model;

#ifndef SK_LIBRARY_VERSION
#error "define SK_LIBRARY_VERSION as a string"
#endif

static void require(const void* pointer, const char* what) {
    if (pointer == nullptr) fail(SK_ERROR_ARGUMENT, "%s is null", what);
}

extern "C" {

const char* sk_version(void) { return SK_LIBRARY_VERSION; }

sk_status sk_package_verify(const char* path) {
    return guarded([&] {
        require(path, "path");
        read_one_folder(path, [](const HeldFolder& held) {
            PackageFolder(held).check_all();
            return SK_OK;
        });
    });
}

sk_status sk_model_open(const char* path, sk_model** model) { return sk_model_open_with(path, nullptr, model); }

sk_status sk_model_open_with(const char* path, const sk_options* options, sk_model** model) {
    return guarded([&] {
        require(path, "path");
        require(model, "model");
        *model = nullptr;
        check_forks_are_watched();
        const ModelOptions wanted = ModelOptions::read(options);
        const auto open = [&](const HeldFolder& held) { return std::make_unique<OpenModel>(held, wanted); };
        *model = add_handle(read_one_folder(path, open));
    });
}

sk_status sk_python_open(const char* path, int32_t folder, const sk_options* options, sk_model** model) {
    return guarded([&] {
        *model = nullptr;
        check_forks_are_watched();
        const ModelOptions wanted = ModelOptions::read(options);
        const HeldFolder held(path, folder);
        try {
            *model = add_handle(std::make_unique<OpenModel>(held, wanted));
        } catch (const Failure& failure) {
            throw naming(path, failure);
        }
    });
}

sk_status sk_model_close(sk_model* model) {
    if (model == nullptr) return SK_OK;
    return guarded([&] { close_handle(model); });
}

sk_status sk_model_describe(sk_model* model, sk_model_info* info) {
    return guarded([&] {
        require(info, "info");
        *info = opened(model).describe();
    });
}

sk_status sk_model_entry(sk_model* model, int32_t index, const sk_entry_info** info) {
    return guarded([&] {
        require(info, "info");
        const OpenModel& found = opened(model);
        const size_t count = found.manifest().entries.size();
        if (index < 0 || size_t(index) >= count) {
            fail(SK_ERROR_NO_SUCH_ENTRY, "there is no entry %d; the package has %zu", index, count);
        }
        *info = &found.entry_info(size_t(index));
    });
}

sk_status sk_model_state(sk_model* model, int32_t index, const sk_tensor_info** info) {
    return guarded([&] {
        require(info, "info");
        const OpenModel& found = opened(model);
        const size_t count = found.manifest().states.size();
        if (index < 0 || size_t(index) >= count) {
            fail(SK_ERROR_NO_SUCH_STATE, "there is no state %d; the package has %zu", index, count);
        }
        *info = &found.state_info(size_t(index));
    });
}

sk_status sk_entry_index(sk_model* model, const char* entry, int32_t* index) {
    return guarded([&] {
        require(entry, "entry");
        require(index, "index");
        *index = opened(model).find_entry(entry);
    });
}

sk_status sk_context_create(sk_model* model, const sk_options* options, sk_context** context) {
    return guarded([&] {
        require(context, "context");
        *context = nullptr;
        ModelUse used = use(model);
        const int wanted = ModelOptions::read(options).threads, most = used.model().threads();
        const int threads = wanted == 0 ? most : std::min(wanted, most);
        *context = add_handle(std::make_unique<RunContext>(std::move(used), threads));
    });
}

sk_status sk_context_destroy(sk_context* context) {
    if (context == nullptr) return SK_OK;
    return guarded([&] { destroy_handle(context); });
}

sk_status sk_run(sk_context* context, const char* entry, const sk_tensor* inputs, const sk_tensor* outputs) {
    return guarded_run([&] {
        require(entry, "entry");
        Turn(context)->run_tensors(entry, inputs, outputs);
    });
}

SK_CALL_PATH sk_status sk_run_index(sk_context* context, int32_t entry, int32_t shape, void* const* inputs, void* const* outputs) {
    return guarded_run([&] { Turn(context)->run(entry, shape, 0, inputs, outputs); });
}

SK_CALL_PATH sk_status sk_run_bucket(sk_context* context, int32_t entry, int32_t shape, int64_t size, void* const* inputs,
                        void* const* outputs) {
    return guarded_run([&] {
        if (size < 1) fail(SK_ERROR_SHAPE, "the size %lld is not positive", (long long)size);
        Turn(context)->run(entry, shape, size, inputs, outputs);
    });
}

sk_status sk_context_reset(sk_context* context) {
    return guarded([&] { Turn(context)->reset(); });
}

sk_status sk_context_copy(sk_context* to, sk_context* from) {
    return guarded([&] {
        const Turn turn(to);
        if (from != to) turn->copy_states(*Turn(from));
    });
}

sk_status sk_state_get(sk_context* context, const char* name, void* data, size_t bytes) {
    return guarded([&] {
        require(name, "name");
        if (bytes > 0) require(data, "data");
        Turn(context)->get_state(name, data, bytes);
    });
}

sk_status sk_state_set(sk_context* context, const char* name, const void* data, size_t bytes) {
    return guarded([&] {
        require(name, "name");
        if (bytes > 0) require(data, "data");
        Turn(context)->set_state(name, data, bytes);
    });
}
}
