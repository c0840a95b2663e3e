// code.h: the shared objects of a package, loaded; the plans of its launches with their entry symbols.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../host/program.h"
#include "huge_pages.h"
#include "kernel_checks.h"
#include "manifest.h"
#include "team_trial.h"

namespace sk::model {

class SharedObject {
  public:
    // Its contents are compared with their hash before.
    SharedObject(const PackageFolder& folder, const std::string& relative);
    ~SharedObject();
    SharedObject(const SharedObject&) = delete;
    SharedObject& operator=(const SharedObject&) = delete;
    host::Entry entry(const std::string& symbol) const;
    StopSlot stop_slot() const;  // null: the code has no checks
    EnterFunction enter() const;  // null: the code throws no exceptions
    MemoryRange code() const { return huge_code_->code(); }
    // Refuses a plan that is not what the object says of its entry; objects that say nothing are taken as they are.
    void check_facts(const PlanSpec& plan, const LaunchSpec& launch) const;

  private:
    const std::string relative_;
    void* handle_;
    std::optional<HugeCode> huge_code_;
};

// A plan with its code. `program` carries what formation.h must know of it.
struct PlanCode {
    const PlanSpec* spec;
    host::Program program;
    TeamTrial trial;
    StopSlot stop_slot;  // null: the code has no checks
    EnterFunction enter;  // null: the code throws no exceptions
};

class Code {
  public:
    void load(const PackageFolder& folder, const Manifest& manifest);
    PlanCode& find(const PlanSpec& plan) const;
    std::vector<MemoryRange> ranges() const;  // of all objects

  private:
    std::map<std::string, std::unique_ptr<SharedObject>> objects_;  // by launch
    std::map<const PlanSpec*, std::unique_ptr<PlanCode>> plans_;
};

}  // namespace sk::model
