#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rollserve/account.h"
#include "rollserve/array.h"
#include "rollserve/episode_batch.h"
#include "rollserve/spaces.h"

/// @file
/// Sessions in which the client acts, step by step.

namespace rollserve {

namespace internal {
class SessionState;
}

/// Observations of N rows for the next actions of a session, and what followed the last ones. These are all rows of all
/// workers, or, of a session with DriveOptions::min_ready, those that are ready.
///
/// Rows are reset in the step that ends an episode: such a row's observation is the first one of its next episode, and
/// `last_observations` has the last one of the episode that has ended.
struct DrivenStep {
  /// The number of the step that actions are wanted for, from 0; with DriveOptions::min_ready, of what was received.
  std::uint64_t number = 0;
  Columns observations;                        ///< (N, *O), the observations for the next actions.
  std::vector<std::uint64_t> episode_indices;  ///< (N) The episode that each row's next step belongs to.
  std::vector<double> rewards;                 ///< (N) The rewards of the last step; zeros before the first.
  std::vector<bool> terminated;         ///< (N) Whether the environment has ended the row's episode with the last step.
  std::vector<bool> truncated;          ///< (N) Whether a limit has. Both flags may be set.
  std::vector<std::size_t> ended_rows;  ///< (E) Positions among these rows, of those whose episodes have ended.
  Columns last_observations;            ///< (E, *O), the last observations of these episodes.
  /// (N) The seed of the last reset of each row's environment; of rows that are stepped at once, of their joint reset.
  std::vector<std::uint64_t> env_seeds;
  Columns infos;                         ///< (N, *I), what came with the observations, with DriveOptions::infos.
  Columns last_infos;                    ///< (E, *I), what came with the last observations, in the same form.
  std::vector<std::size_t> rows;         ///< (N) The numbers of these rows among all rows.
  std::vector<std::uint64_t> row_steps;  ///< (N) How many steps each of them has made in the session.

  /// Return whether each row's episode has ended with the last step, (N).
  std::vector<bool> ended() const;
};

/// A session: the client acts in the rows of a sampler, step by step, in place of its agent. The server records what
/// happens.
///
///     rollserve::Session session = sampler.drive(options);
///     rollserve::DrivenStep step = session.observe();
///     for (int i = 0; i < 128; ++i) step = session.step(policy(step.observations));
///     learn(session.batch());
///     std::cout << session.end().num_episodes << '\n';
///
/// A session that is destroyed before its end is cancelled. One thread at a time may use a session; any may cancel it.
class Session {
 public:
  /// Take over another session.
  Session(Session&&) noexcept;
  /// Cancel this session, and take over another one.
  Session& operator=(Session&&) noexcept;
  /// Cancel the session, unless it has ended.
  ~Session();

  /// Return the number of rows of all workers.
  std::size_t num_rows() const noexcept;
  /// Return the space of a row's observations.
  const Space& observation_space() const& noexcept;
  /// Return the space of a row's actions.
  const Space& action_space() const& noexcept;
  /// Return what takes a session with a lease up again, see Sampler::resume_session(); empty for one without.
  std::string token() const;

  /// Return the present step, with the observations that the next actions are for.
  ///
  /// @throws Error as the subclasses say; every later call throws it again.
  DrivenStep observe();

  /// Act in all rows, and return what follows.
  ///
  /// @param actions (N, *A), the actions of all rows, for each leaf of the action space.
  /// @param agent_infos (N, *I), a column for each of DriveOptions::agent_infos.
  /// @param idle (N) whether each row makes no step, whatever its action is: only rows whose present episode has made
  /// none, and not where rows are stepped at once. By default, all rows make a step.
  /// @throws InvalidArgumentError for actions or infos of another form; the session goes on. Actions outside the action
  /// space end it: no row has stepped.
  /// @throws Error as observe().
  DrivenStep step(const Columns& actions, const Columns& agent_infos = {}, const std::vector<bool>& idle = {});
  /// Act in all rows with the actions of a plain action space; as the other one.
  DrivenStep step(const Array& actions, const Columns& agent_infos = {}, const std::vector<bool>& idle = {});

  /// Act in rows of a session with DriveOptions::min_ready that wait for it; recv() returns what follows.
  ///
  /// @param actions (K, *A), the actions of these rows, for each leaf of the action space.
  /// @param rows (K) the rows that act; by default, those of the last step.
  /// @param agent_infos (K, *I), a column for each of DriveOptions::agent_infos.
  /// @throws InvalidArgumentError as step(), and for rows that do not wait for actions.
  /// @throws Error as observe().
  void send(const Columns& actions, const std::vector<std::size_t>& rows = {}, const Columns& agent_infos = {});
  /// Act in rows with the actions of a plain action space; as the other one.
  void send(const Array& actions, const std::vector<std::size_t>& rows = {}, const Columns& agent_infos = {});

  /// Wait for the next step of a session with DriveOptions::min_ready, as soon as so many rows are ready.
  ///
  /// @throws Error as observe(); also because of actions that were sent.
  DrivenStep recv();

  /// End the present fragments, and return all that was recorded since the last call.
  ///
  /// @throws PreconditionError if nothing was.
  /// @throws Error as observe().
  EpisodeBatch batch();

  /// End the session, and return its account. batch() then has what was recorded and not taken.
  ///
  /// @throws Error as observe().
  Account end();

  /// Return the account, after end().
  ///
  /// @throws InvalidArgumentError before the end of the session.
  const Account& account() const&;

  /// Cancel the session: later calls throw a CancelledError, also one that is waiting. Any thread may cancel.
  void cancel() noexcept;

  /// @cond
  const Space& observation_space() const&& = delete;  // these would outlive the session
  const Space& action_space() const&& = delete;
  const Account& account() const&& = delete;
  explicit Session(std::unique_ptr<internal::SessionState> state);
  /// @endcond

 private:
  std::unique_ptr<internal::SessionState> state_;
};

}  // namespace rollserve
