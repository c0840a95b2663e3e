// report.cpp: a launch that stalled or crashed -> text that names scope, op and cores; crash signals are caught here.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"
#include "superkernel/window.h"

namespace sk::host {

constexpr int kExitStatus = 70;
constexpr size_t kSignalStack = 64 * 1024;

thread_local const Running* running_here = nullptr;
thread_local int core_here = 0;

static const char* spell(Doing doing) {
    switch (doing) {
        case Doing::kNotStarted: return "not started";
        case Doing::kCalling: return "inside";
        case Doing::kWaiting: return "waiting in";
        case Doing::kFinished: return "finished";
    }
    return "?";
}

void describe(const Running& running, const char* headline, char* text, size_t room) {
    const Program& program = *running.program;
    size_t used = snprintf(text, room, "super_kernel_scope '%s': %s\n", program.name.c_str(), headline);
    for (int core = 0; core < running.cores && used < room; ++core) {
        const Doing doing = running.activity[core].doing.load();
        const uint32_t step = running.activity[core].step.load();
        const bool busy = doing == Doing::kCalling || doing == Doing::kWaiting;
        const char* what = busy && step < program.texts.size() ? program.texts[step].c_str() : "";
        used += snprintf(text + used, room - used, "  core %d: %s %s", core, spell(doing), what);
        const RankLine* const line = running.activity[core].awaited.load();
        if (line != nullptr && used < room) {
            used += snprintf(text + used, room - used, ": rank %u (process %u) has not arrived", line->global_rank, line->process);
        }
        if (used < room) used += snprintf(text + used, room - used, "\n");
    }
}

bool inside_sub_kernel(const Running& running) {
    for (int core = 0; core < running.cores; ++core) {
        if (running.activity[core].doing.load() == Doing::kCalling) return true;
    }
    return false;
}

static void write_all(int file, const char* text) {
    size_t left = strlen(text);
    while (left > 0) {
        const ssize_t written = write(file, text, left);
        if (written <= 0) return;
        text += written;
        left -= size_t(written);
    }
}

void publish(const Running& running, const char* text) {
    write_all(STDERR_FILENO, text);
    const char* path = running.program->report_path.c_str();
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file >= 0) {
        write_all(file, text);
        close(file);
        write_all(STDERR_FILENO, "  report: ");
        write_all(STDERR_FILENO, path);
        write_all(STDERR_FILENO, "\n");
    }
}

void end_process() { _exit(kExitStatus); }

// crash signals

static const int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static struct sigaction previous_action[NSIG];

static void describe_crash(const Running& running, int number, const siginfo_t* info) {
    const uint32_t step = running.activity[core_here].step.load();
    const char* what = step < running.program->texts.size() ? running.program->texts[step].c_str() : "?";
    static char headline[1024], text[kReportBytes];
    snprintf(headline, sizeof headline, "%s on core %d in '%s' (address %p)", strsignal(number), core_here, what,
             info->si_code > 0 ? info->si_addr : nullptr);  // sent by another process: no address
    describe(running, headline, text, sizeof text);
    publish(running, text);
}

// Report a crash inside a launch, then do what would have happened without this handler.
static void on_crash(int number, siginfo_t* info, void* context) {
    if (running_here != nullptr) {
        static std::atomic_flag reporting = ATOMIC_FLAG_INIT;
        while (reporting.test_and_set()) pause();  // another core crashed first and ends the process
        const Running* const running = running_here;
        running_here = nullptr;  // the handlers that follow may raise the signal again
        describe_crash(*running, number, info);
    }
    const struct sigaction& old = previous_action[number];
    if ((old.sa_flags & SA_SIGINFO) != 0 && old.sa_sigaction != nullptr) {
        old.sa_sigaction(number, info, context);
    } else if (old.sa_handler != SIG_IGN && old.sa_handler != SIG_DFL) {
        old.sa_handler(number);
    } else if (old.sa_handler == SIG_DFL || info->si_code > 0) {  // a fault cannot be ignored: it would come again
        signal(number, SIG_DFL);
        raise(number);
    }
}

void install_crash_handlers() {
    for (const int number : kCrashes) {
        struct sigaction current;
        sigaction(number, nullptr, &current);
        if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_crash) continue;
        previous_action[number] = current;
        struct sigaction action = {};
        action.sa_sigaction = on_crash;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(number, &action, nullptr);
    }
}

namespace {

// An alternate signal stack for the lifetime of the thread, for sub-kernels that overflow the normal one.
struct SignalStack {
    stack_t stack = {};

    SignalStack() {
        stack_t current;
        if (sigaltstack(nullptr, &current) == 0 && (current.ss_flags & SS_DISABLE) == 0) return;
        stack.ss_sp = malloc(kSignalStack);
        stack.ss_size = kSignalStack;
        if (stack.ss_sp != nullptr) sigaltstack(&stack, nullptr);
    }
    ~SignalStack() {
        if (stack.ss_sp == nullptr) return;
        stack_t none = {};
        none.ss_flags = SS_DISABLE;
        sigaltstack(&none, nullptr);
        free(stack.ss_sp);
    }
};

}  // namespace

void guard_this_thread() { static thread_local SignalStack stack; }

}  // namespace sk::host
