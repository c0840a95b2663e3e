// Launches of a plan on a clock of their own: "TEAM_NS_AT_FIRST TEAM_NS SOLO_NS" -> the share of teams, by launches.
#include "team_trial.h"

#include <stdio.h>
#include <stdlib.h>

int main(int, char** arguments) {
    using sk::model::TeamTrial;
    const uint64_t at_first = strtoull(arguments[1], nullptr, 10), team_ns = strtoull(arguments[2], nullptr, 10);
    const uint64_t solo_ns = strtoull(arguments[3], nullptr, 10);
    TeamTrial trial;
    int teams = 0;
    for (int launch = 0; launch < 16384; ++launch) {
        const TeamTrial::Choice choice = trial.next();
        const bool team = choice.way == TeamTrial::Way::kTeam;
        teams += team;
        if (choice.measured) trial.measured(choice.way, !team ? solo_ns : launch < 100 ? at_first : team_ns);
        if (launch == 511 || launch == 1023 || launch == 16383) {
            printf("%d\n", teams);
            teams = 0;
        }
    }
}
