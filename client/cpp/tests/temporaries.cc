// A program that compiles with ROLLSERVE_NAMED only: what a temporary gives out would refer to freed memory.
// CMakeLists.txt has the expressions.

#include <rollserve/rollserve.h>

#ifdef ROLLSERVE_NAMED
#define OF(object) object
#else
template <class T>
T temporary(T& object);
#define OF(object) temporary(object)
#endif

#define REFER(expression) static_cast<void>((expression));

void refer([[maybe_unused]] rollserve::Array& array, [[maybe_unused]] rollserve::Columns& columns,
           [[maybe_unused]] rollserve::EpisodeBatch& batch, [[maybe_unused]] rollserve::Session& session,
           [[maybe_unused]] rollserve::Stream& stream, [[maybe_unused]] rollserve::Stream::Iterator& position) {
#include "temporaries.inc"
}
