// A program that finds the installed package with CMake: no server listens at the address, so the call fails.

#include <rollserve/rollserve.h>

int main() {
  try {
    rollserve::connect("127.0.0.1:1").update_agent(rollserve::RandomAgent{});
  } catch (const rollserve::UnavailableError&) {
    return 0;
  }
  return 1;
}
