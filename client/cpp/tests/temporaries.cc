// A program that must not compile, except with ROLLSERVE_NAMED: elements of a temporary would be freed memory.

#include <rollserve/rollserve.h>

double first_of(rollserve::Sampler& sampler) {
#ifdef ROLLSERVE_NAMED
  const rollserve::EpisodeBatch batch = sampler.obtain_samples(1);
  return batch.observations.values<float>()[0];
#else
  return sampler.obtain_samples(1).observations.values<float>()[0];
#endif
}
