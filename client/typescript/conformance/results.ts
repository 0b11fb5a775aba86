/** Descriptions of results. */

import { createHash } from "node:crypto";

import {
  AccessError,
  CancelledError,
  DeadlineError,
  InvalidArgumentError,
  LimitError,
  PreconditionError,
  RollserveError,
  UnavailableError,
  type Account,
  type Columns,
  type EpisodeBatch,
  type Tensor,
  type TypedArray,
} from "rollserve";

import { Unsupported } from "./arguments.js";

/** A column: its type and shape, and the SHA-256 of its bytes and of those of its mask. */
interface Column {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly sha256: string;
  readonly mask?: string;
}

// Subclasses stand before their base class.
const KINDS: readonly (readonly [new (...args: never[]) => RollserveError, string])[] = [
  [AccessError, "access"],
  [InvalidArgumentError, "invalid_argument"],
  [PreconditionError, "precondition"],
  [LimitError, "limit"],
  [UnavailableError, "unavailable"],
  [CancelledError, "cancelled"],
  [DeadlineError, "deadline"],
];

/** Describe a batch by lists of its headers and digests of its columns. */
export function describeBatch(batch: EpisodeBatch): object {
  return {
    episode_indices: Array.from(batch.episodeIndices, Number),
    first_steps: Array.from(batch.firstSteps, Number),
    lengths: [...batch.lengths],
    terminated: Array.from(batch.terminated, Boolean),
    truncated: Array.from(batch.truncated, Boolean),
    policy_versions: Array.from(batch.policyVersions, Number),
    env_seeds: [...batch.envSeeds],
    returns: [...batch.returns],
    observations: describeLeaves(batch.observations),
    last_observations: describeLeaves(batch.lastObservations),
    actions: describeLeaves(batch.actions),
    rewards: { "": { dtype: "float64", shape: [batch.numSteps], sha256: digest(batch.rewards) } },
    agent_infos: describeInfos(batch.agentInfos),
    env_infos: describeInfos(batch.envInfos),
    episode_infos: describeInfos(batch.episodeInfos),
    initial_states: describeInfos(batch.initialStates),
    last_states: describeInfos(batch.lastStates),
    last_values: batch.lastValues ? { "": describeColumn(batch.lastValues) } : {},
    raw_rewards: batch.rawRewards
      ? { "": { dtype: "float64", shape: [batch.numSteps], sha256: digest(batch.rawRewards) } }
      : {},
    environment_actions: batch.envActions ? describeLeaves(batch.envActions) : {},
    returns_before: [...batch.returnsBefore], // NaN is null in JSON
    account: describeAccount(batch.account),
  };
}

/** Describe an account; undefined stays undefined, which JSON leaves out. */
export function describeAccount(account: Account | undefined): object | undefined {
  return (
    account && {
      num_steps: Number(account.numSteps),
      num_episodes: Number(account.numEpisodes),
      seed: String(account.seed),
      num_resumptions: account.numResumptions,
      num_non_finite_steps: Number(account.numNonFiniteSteps),
      dropped_infos: Object.fromEntries(
        Object.entries(account.droppedInfos).map(([name, count]) => [name, Number(count)]),
      ),
    }
  );
}

/** Describe the failure of an operation. */
export function describeError(error: unknown): Readonly<Record<string, unknown>> {
  if (error instanceof Unsupported) {
    return { unsupported: error.message };
  }
  if (!(error instanceof RollserveError)) {
    throw error;
  }
  if (error instanceof InvalidArgumentError && error.field === "compression") {
    return { unsupported: error.message };
  }
  return {
    error: {
      kind: KINDS.find(([kind]) => error instanceof kind)?.[1] ?? "server",
      status: error.code,
      reason: error.reason,
      field: error.field,
      message: error.message,
      request_id: error.requestId,
    },
  };
}

/** Describe the leaves of a space. */
export function describeLeaves(columns: Columns): Readonly<Record<string, Column>> {
  return Object.fromEntries([...columns].map(([name, column]) => [name, describeColumn(column)]));
}

/** Describe columns that can have gaps. */
export function describeInfos(columns: Columns): Readonly<Record<string, Column>> {
  const isMask = (name: string): boolean => name.startsWith("_") && columns.has(name.slice(1));
  const infos = [...columns].filter(([name]) => !isMask(name));
  return Object.fromEntries(
    infos.map(([name, column]) => {
      const mask = columns.get(`_${name}`);
      const described = describeColumn(column);
      return [name, mask === undefined ? described : { ...described, mask: digest(mask.data) }];
    }),
  );
}

/** Describe a column by its type, its shape and its digest. */
export function describeColumn({ dtype, shape, data }: Tensor): Column {
  return { dtype, shape, sha256: digest(data) };
}

/** Return the SHA-256 of elements, which are little endian on all machines of this package, in hexadecimal digits. */
function digest(data: TypedArray): string {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  return createHash("sha256").update(bytes).digest("hex");
}
