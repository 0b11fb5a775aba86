#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// @file
/// Accounts: what became of everything that was simulated for a call.

namespace rollserve {

/// One worker's share in a call.
struct WorkerAccount {
  std::uint32_t worker_index = 0;         ///< The worker's index.
  std::uint64_t num_simulated_steps = 0;  ///< Steps that the worker simulated while the call ran.
  std::uint64_t num_steps = 0;            ///< Delivered steps that the worker simulated.
  std::uint64_t num_episodes = 0;         ///< Delivered episodes that the worker simulated.
  double sampling_seconds = 0;            ///< Time spent stepping environments and evaluating the policy.
  double encoding_seconds = 0;            ///< Time spent writing messages.
  std::uint64_t num_missing_steps = 0;    ///< Steps of its share of a fragment call that the worker did not make.
};

/// An episode whose environment raised an error.
struct EpisodeFailure {
  std::uint64_t episode_index = 0;  ///< The index of the episode.
  std::uint32_t worker_index = 0;   ///< The worker that ran the episode last.
  std::uint32_t num_attempts = 0;   ///< The number of failed attempts on that worker.
  bool skipped = false;             ///< Whether the call went on without the episode.
  std::string text;                 ///< Where the environment raised its last error, and the error.
};

/// What was simulated for a call, and what became of it.
///
/// Carried plus simulated steps equal the sum of the delivered, kept, superseded, cancelled, lost, idle and discarded
/// steps. After an interruption of the stream, the account counts what all calls of the stream delivered; its other
/// numbers are those of the last call. The comment on Account in episode_batch.proto says more.
struct Account {
  std::uint64_t num_steps = 0;             ///< Delivered steps.
  std::uint64_t num_episodes = 0;          ///< Delivered episodes; for fragments, the episodes that ended in this call.
  std::uint64_t num_simulated_steps = 0;   ///< Steps simulated while the call ran, also beyond its end.
  std::uint64_t num_carried_steps = 0;     ///< Steps simulated earlier whose fate this account reports.
  std::uint64_t num_kept_steps = 0;        ///< Steps beyond the last delivered episode, kept for the next call.
  std::uint64_t num_superseded_steps = 0;  ///< Steps kept or prefetched earlier that no call can use any more.
  std::uint64_t num_cancelled_steps = 0;   ///< Discarded steps of calls that were cancelled or failed.
  std::uint64_t num_lost_steps = 0;        ///< Steps lost with a worker, an environment or as a duplicate.
  std::uint64_t num_idle_steps = 0;        ///< Steps of rows that waited for the others of their block.
  std::uint64_t num_prefetched_steps = 0;  ///< Carried steps that were simulated between calls.
  std::uint64_t num_discarded_steps = 0;   ///< Steps not delivered because of `blackhole`, or in an evaluation.
  std::uint64_t num_discarded_episodes = 0;   ///< Episodes that ended in these steps.
  std::uint64_t num_missing_steps = 0;        ///< Requested steps that were not made, with `fraction_of_workers`.
  std::uint64_t num_retried_episodes = 0;     ///< Episodes that ran again because something had failed.
  std::uint64_t num_straggler_episodes = 0;   ///< Episodes started a second time because they took long.
  std::uint64_t num_reassigned_episodes = 0;  ///< Exact episodes that another worker ran than the one they belong to.
  std::uint64_t num_failed_episodes = 0;      ///< Episodes that the call skipped, with `skip_failed_episodes`.
  std::uint64_t num_broken_off_episodes = 0;  ///< Episodes of fragments whose rows could not be restored.
  std::uint64_t num_non_finite_steps = 0;     ///< Delivered steps with a NaN or an infinity.
  std::uint64_t shared_message_bytes = 0;     ///< Bytes of messages that came through shared memory.
  int num_resumptions = 0;                    ///< How often the stream broke and was resumed.
  std::uint64_t seed = 0;                     ///< The root seed of the sequence of episodes.
  std::uint64_t first_episode_index = 0;      ///< The index of the first delivered episode; 0 for fragments.
  std::uint64_t row_step_count = 0;           ///< For fragments, the steps of each row in the sequence before the call.
  std::int64_t policy_version = 0;            ///< The version of the policy that acted.
  std::int64_t env_version = 0;               ///< The version of the environment.
  double queued_seconds = 0;                  ///< Time in the queue until admission.
  double waiting_seconds = 0;                 ///< Time spent waiting for workers after that.
  double sending_seconds = 0;                 ///< Time spent waiting for the client to read messages.
  double elapsed_seconds = 0;                 ///< Time since admission: waiting and sending.
  std::map<std::string, std::uint64_t> dropped_infos;  ///< The number of values that the batch lacks, by info.
  std::map<std::string, std::uint64_t> retry_reasons;  ///< The number of retried episodes by reason.
  std::vector<EpisodeFailure> episode_failures;        ///< The first 64 episodes whose environments raised errors.
  std::vector<WorkerAccount> workers;                  ///< Each worker's share, in the order of their indices.
};

}  // namespace rollserve
