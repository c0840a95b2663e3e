// agent.cpp: control agents, which are threads of the caller: each answers the tiling requests of one launch at a time.
#include <chrono>

#include "program.h"
#include "superkernel/wait.h"

namespace sk::host {

// Lives as long as the process: its thread waits here between launches.
struct Agent {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<int32_t> requests;  // tilings that wait for an answer
    bool busy = false;       // its thread has a request and has not come back
    bool abandoned = false;  // the launch was over while the thread was busy: the thread ends that launch
};

void request_tiling(Launch* launch, int tiling) {
    Agent& agent = *static_cast<Running*>(launch)->agent;
    const std::lock_guard<std::mutex> hold(agent.mutex);
    agent.requests.push_back(tiling);
    agent.changed.notify_all();
}

}  // namespace sk::host

using namespace sk::host;

extern "C" {

Agent* sk_agent_create() { return new Agent; }

// Before the launch runs: this agent answers its requests.
void sk_agent_attach(Agent* agent, Running* running) { running->agent = agent; }

// The agent's thread: the next request, blocking; -1: the launch that it served was abandoned and must be ended.
int32_t sk_agent_next(Agent* agent) {
    std::unique_lock<std::mutex> hold(agent->mutex);
    agent->busy = false;
    agent->changed.notify_all();
    if (agent->abandoned) {
        agent->abandoned = false;
        return -1;
    }
    agent->changed.wait(hold, [agent] { return !agent->requests.empty(); });
    agent->busy = true;
    const int32_t tiling = agent->requests.front();
    agent->requests.erase(agent->requests.begin());
    return tiling;
}

void sk_agent_answer(Running* running, int32_t tiling, int64_t key, int64_t blocks) {
    sk::answer_tiling(running->tilings[tiling], key, blocks);
}

void sk_agent_failed(Running* running, int32_t tiling) { running->stop(sk::Fault::kTilingFailed, 0, tiling); }

// After a launch that was stopped. 1: the agent has nothing more to do with it. 0: a tiling function did not return
// within so many seconds; the agent ends the launch when it does.
int32_t sk_agent_detach(Agent* agent, double seconds) {
    std::unique_lock<std::mutex> hold(agent->mutex);
    agent->requests.clear();
    const std::chrono::duration<double> limit(seconds);
    agent->abandoned = !agent->changed.wait_for(hold, limit, [agent] { return !agent->busy; });
    return agent->abandoned ? 0 : 1;
}

}  // extern "C"
