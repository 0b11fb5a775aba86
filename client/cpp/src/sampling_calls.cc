#include "sampling_calls.h"

namespace rollserve::internal {

namespace {

/// Return the options of a sampling call as a message, with the versions that the client expects.
v1::SamplingOptions sent_options(Connection& connection, const SamplingOptions& options) {
  v1::SamplingOptions message = message_of(options, connection.config());
  connection.own_versions().expect_in(message);
  return message;
}

}  // namespace

v1::ObtainSamplesRequest samples_request(Connection& connection, std::int64_t num_steps,
                                         const SamplingOptions& options) {
  v1::ObtainSamplesRequest request;
  request.set_sampler(connection.config().sampler);
  request.set_step_count(num_steps);
  *request.mutable_options() = sent_options(connection, options);
  return request;
}

v1::ObtainExactEpisodesRequest exact_episodes_request(Connection& connection, std::int64_t num_episodes_per_worker,
                                                      const SamplingOptions& options) {
  v1::ObtainExactEpisodesRequest request;
  request.set_sampler(connection.config().sampler);
  request.set_episode_count_per_worker(num_episodes_per_worker);
  *request.mutable_options() = sent_options(connection, options);
  return request;
}

v1::ObtainSamplesRequest fragments_request(Connection& connection, std::int64_t num_steps,
                                           const FragmentOptions& options) {
  v1::ObtainSamplesRequest request = samples_request(connection, num_steps, options);
  v1::Fragments& fragments = *request.mutable_fragments();
  fragments.set_soft_horizon(options.soft_horizon);
  if (options.row_step_count) fragments.set_row_step_count(*options.row_step_count);
  if (options.fraction_of_workers) fragments.set_fraction_of_workers(*options.fraction_of_workers);
  return request;
}

void check_joinable(const SamplingOptions& options) {
  if (options.blackhole) {
    raise_invalid("blackhole", "false for a call that returns a batch (read a stream to its end)", "true");
  }
}

}  // namespace rollserve::internal
