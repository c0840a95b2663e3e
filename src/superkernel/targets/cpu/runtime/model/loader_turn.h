// loader_turn.h: when objects are loaded and unloaded, and when the process may be forked.
#pragma once

namespace sk::model {

// Held while objects are loaded and unloaded, by any number of threads. A fork waits until none holds one: the locks of the
// system's loader, and its lists, would stay in the child as they were at that moment.
class LoaderTurn {
  public:
    LoaderTurn();
    ~LoaderTurn();
    LoaderTurn(const LoaderTurn&) = delete;
    LoaderTurn& operator=(const LoaderTurn&) = delete;
    static void before_fork();
    static void after_fork(bool child);
};

}  // namespace sk::model
