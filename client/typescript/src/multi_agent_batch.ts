/**
 * Episodes of environments with many agents: a batch for each policy, and views by agent and by environment step.
 *
 * @packageDocumentation
 */

import type { Account } from "./account.js";
import { itemSize, type DType } from "./dtypes.js";
import { EpisodeBatch } from "./episode_batch.js";
import { mismatch } from "./errors.js";
import { beginsOf, concatenate } from "./joining.js";
import { Columns, sizeOf, Tensor } from "./tensor.js";

/** The parts of a batch of many agents. */
export interface MultiAgentFields {
  readonly agents: readonly string[];
  readonly episodeIndices: BigUint64Array;
  readonly firstSteps: BigUint64Array;
  readonly lengths: Uint32Array;
  readonly terminated: Uint8Array;
  readonly truncated: Uint8Array;
  readonly agentStepCounts: Uint32Array;
  readonly policies: readonly PolicyBatch[];
  readonly globalStates: Tensor | undefined;
  readonly lastGlobalStates: Tensor | undefined;
}

/** The parts of a batch of a policy. */
export interface PolicyFields {
  readonly policy: string;
  readonly batch: EpisodeBatch;
  readonly agentPositions: Uint32Array;
  readonly envSteps: Uint32Array;
  readonly rewardsBefore: Float64Array;
}

/** An agent's part in the T environment steps of a batch, with zeros where it did not act. */
export interface AgentSteps {
  /** (T). 1 where the agent acted in the step, else 0. */
  readonly acted: Uint8Array;
  /** (T, *O). Its observation before each step. */
  readonly observations: Columns;
  /** (T, *A). Its actions. */
  readonly actions: Columns;
  /** (T). The reward of each action: the sum of what the agent got until it acted again. */
  readonly rewards: Float64Array;
  /** (T). 1 where its life was terminated after the action, else 0. */
  readonly terminated: Uint8Array;
  /** (T). 1 where its life was truncated after the action, else 0. */
  readonly truncated: Uint8Array;
  /** (T). The version of the policy that acted. */
  readonly policyVersions: BigInt64Array;
}

/** The segments of N lives of agents, with T steps, in which a policy acted. */
export class PolicyBatch implements PolicyFields {
  /** The name of the policy. */
  readonly policy: string;
  /** The segments. `policyVersions` has the versions of this policy. */
  readonly batch: EpisodeBatch;
  /** (N). The agent of each segment: its position among the environment's agents. */
  readonly agentPositions: Uint32Array;
  /**
   * (T). The environment step of the episode in which each step was made, from 0. Of fragments, the step may be one of
   * an earlier fragment, where what followed was not known.
   */
  readonly envSteps: Uint32Array;
  /**
   * (N). The sum of the rewards that the agent got in its life before its first action; 0 for segments that begin
   * within a life. `episodeReturns` of the batch have it, and `returns` have not.
   */
  readonly rewardsBefore: Float64Array;

  /**
   * Make a batch of its parts.
   *
   * @throws Error - Parts that do not fit together; the message begins with the name of one.
   *
   * @internal
   */
  constructor(fields: PolicyFields) {
    this.policy = fields.policy;
    this.batch = fields.batch;
    this.agentPositions = fields.agentPositions;
    this.envSteps = fields.envSteps;
    this.rewardsBefore = fields.rewardsBefore;
    const { numSegments, numSteps } = fields.batch;
    checkLength("agentPositions", this.agentPositions, numSegments);
    checkLength("envSteps", this.envSteps, numSteps);
    checkLength("rewardsBefore", this.rewardsBefore, numSegments);
  }

  /**
   * Return some segments, in the given order, in new memory.
   *
   * @internal
   */
  take(segments: readonly number[]): PolicyBatch {
    return new PolicyBatch({
      policy: this.policy,
      batch: this.batch.take(segments),
      agentPositions: Uint32Array.from(segments, (segment) => this.agentPositions[segment] ?? 0),
      envSteps: Uint32Array.from(this.batch.stepsOf(segments), (step) => this.envSteps[step] ?? 0),
      rewardsBefore: Float64Array.from(segments, (segment) => this.rewardsBefore[segment] ?? 0),
    });
  }

  /**
   * Return the segments by episode, agent and time, where parts of one life are one segment.
   *
   * @internal
   */
  joined(): PolicyBatch {
    const { episodeIndices } = this.batch;
    const order = Array.from(episodeIndices.keys()).sort((one, other) => {
      const [first, second] = [episodeIndices[one] ?? 0n, episodeIndices[other] ?? 0n];
      const byAgent = (this.agentPositions[one] ?? 0) - (this.agentPositions[other] ?? 0);
      return first < second ? -1 : first > second ? 1 : byAgent;
    });
    const isOrdered = order.every((segment, place) => segment === place);
    const ordered = isOrdered ? this : this.take(order);
    const positions = ordered.agentPositions;
    // Segments of two agents are never one, whatever steps they have.
    const mayContinue = (segment: number): boolean => positions[segment] === positions[segment - 1];
    const begins = beginsOf([ordered.batch], mayContinue);
    return new PolicyBatch({
      policy: this.policy,
      batch: concatenate([ordered.batch], mayContinue),
      agentPositions: Uint32Array.from(begins, (segment) => positions[segment] ?? 0),
      envSteps: ordered.envSteps,
      rewardsBefore: Float64Array.from(begins, (segment) => ordered.rewardsBefore[segment] ?? 0),
    });
  }

  /**
   * Return the batch without the steps of an episode before an environment step, and the number of these steps.
   *
   * @internal
   */
  withoutStepsBefore(episode: bigint, stop: number): { readonly rest: PolicyBatch[]; readonly numDropped: number } {
    const kept: PolicyBatch[] = [];
    let numDropped = 0;
    let begin = 0;
    let segment = 0;
    for (const batch of this.batch.segments()) {
      const steps = this.envSteps.subarray(begin, begin + batch.numSteps);
      const dropped = batch.episodeIndices[0] === episode ? steps.filter((step) => step < stop).length : 0;
      numDropped += dropped;
      if (dropped < steps.length) {
        kept.push(
          new PolicyBatch({
            policy: this.policy,
            batch: batch.withoutFirstSteps(dropped),
            agentPositions: this.agentPositions.subarray(segment, segment + 1),
            envSteps: steps.subarray(dropped),
            rewardsBefore: dropped > 0 ? new Float64Array(1) : this.rewardsBefore.subarray(segment, segment + 1),
          }),
        );
      }
      begin += batch.numSteps;
      segment += 1;
    }
    return { rest: kept.length === 0 ? [] : [concatenatePolicy(kept)], numDropped };
  }
}

/**
 * Parts of E episodes of an environment with many agents, or fragments of them, with T environment steps in all.
 *
 * An episode has one segment for each life of each agent: from its first observation to its end. All segments in which
 * a policy acted are one `EpisodeBatch`, whose headers are those of lives and count the agents' own steps.
 */
export class MultiAgentBatch implements MultiAgentFields {
  /** The names of the environment's possible agents. */
  readonly agents: readonly string[];
  /** (E). The index of each episode; rising, except for fragments. */
  readonly episodeIndices: BigUint64Array;
  /** (E). The number of environment steps of the episode before this part. */
  readonly firstSteps: BigUint64Array;
  /** (E). The number of environment steps. */
  readonly lengths: Uint32Array;
  /** (E). 1 where the episode ended with its last step here, and an agent was terminated then, else 0. */
  readonly terminated: Uint8Array;
  /** (E). 1 where the episode ended with its last step here, and an agent was truncated then, else 0. */
  readonly truncated: Uint8Array;
  /** (E). The number of steps of all agents, also of those whose policies are not delivered. */
  readonly agentStepCounts: Uint32Array;
  /** The policies that acted. The batches of a stream have one for each version of a policy. */
  readonly policies: readonly PolicyBatch[];
  /**
   * (T, *S). The environment's global state before each environment step; undefined unless `globalState` of the
   * environment asks for it. Its rows are those of `joint`.
   */
  readonly globalStates: Tensor | undefined;
  /** (E, *S). The global state after the last step of each part; undefined alike. */
  readonly lastGlobalStates: Tensor | undefined;
  /** The account of the call whose whole result the batch is, in environment steps; otherwise undefined. */
  readonly account: Account | undefined;

  /**
   * Make a batch of its parts.
   *
   * @throws Error - Parts that do not fit together; the message begins with the name of one.
   *
   * @internal
   */
  constructor(fields: MultiAgentFields, account?: Account) {
    this.agents = fields.agents;
    this.episodeIndices = fields.episodeIndices;
    this.firstSteps = fields.firstSteps;
    this.lengths = fields.lengths;
    this.terminated = fields.terminated;
    this.truncated = fields.truncated;
    this.agentStepCounts = fields.agentStepCounts;
    this.policies = fields.policies;
    this.globalStates = fields.globalStates;
    this.lastGlobalStates = fields.lastGlobalStates;
    this.account = account;
    for (const name of HEADERS) {
      checkLength(name, this[name], this.lengths.length);
    }
    if ((this.globalStates === undefined) !== (this.lastGlobalStates === undefined)) {
      throw new Error(`lastGlobalStates: ${mismatch("states beside globalStates", "none of one of both")}`);
    }
    for (const [name, states, numStates] of [
      ["globalStates", this.globalStates, this.numSteps],
      ["lastGlobalStates", this.lastGlobalStates, this.lengths.length],
    ] as const) {
      if (states !== undefined && states.shape[0] !== numStates) {
        throw new Error(`${name}: ${mismatch(`${String(numStates)} states`, `shape [${states.shape.join(", ")}]`)}`);
      }
    }
  }

  /** E, the number of parts of episodes. */
  get numEpisodes(): number {
    return this.lengths.length;
  }

  /** T, the number of environment steps. */
  get numSteps(): number {
    return this.lengths.reduce((sum, length) => sum + length, 0);
  }

  /** The number of steps of all agents, also of those whose policies are not delivered. */
  get numAgentSteps(): number {
    return this.agentStepCounts.reduce((sum, count) => sum + count, 0);
  }

  /** Return the segments in which each policy acted, by episode, agent and time. */
  byPolicy(): Map<string, EpisodeBatch> {
    return new Map(this.joined().policies.map(({ policy, batch }) => [policy, batch]));
  }

  /**
   * Return the segments of each agent that acted, by episode and time, whatever policies acted.
   *
   * Infos that only some of the policies have are gaps of the others.
   *
   * @throws Error - Policies whose infos of one name differ in shape.
   */
  byAgent(): Map<string, EpisodeBatch> {
    const { policies } = this.joined();
    const batches = new Map<string, EpisodeBatch>();
    this.agents.forEach((agent, position) => {
      const parts = policies.flatMap(({ batch, agentPositions }) => {
        const segments = positionsOf(agentPositions, (each) => each === position);
        return segments.length === 0 ? [] : [batch.take(segments)];
      });
      if (parts.length > 0) {
        const whole = concatenate(parts, () => false);
        const { episodeIndices } = whole;
        const order = Array.from(episodeIndices.keys()).sort((one, other) =>
          Number((episodeIndices[one] ?? 0n) - (episodeIndices[other] ?? 0n)),
        );
        batches.set(agent, whole.take(order));
      }
    });
    return batches;
  }

  /**
   * Return the steps of each agent that acted, aligned to the environment steps of all episodes, which follow each
   * other as in `lengths`.
   *
   * Of fragments, a step whose environment step an earlier batch has is left out; `concatenateMany` has both.
   */
  joint(): Map<string, AgentSteps> {
    const rows = this.#rowsOfSteps();
    const joint = new Map<string, AgentSteps>();
    for (const part of this.policies) {
      const { starts } = part.batch;
      part.agentPositions.forEach((position, segment) => {
        const agent = this.agents[position] ?? "";
        const steps = joint.get(agent) ?? emptySteps(part.batch, this.numSteps);
        joint.set(agent, steps);
        putSegment(steps, part, segment, starts[segment] ?? 0, rows);
      });
    }
    return joint;
  }

  /**
   * Return the batch with one part for each episode and one batch for each policy, in the order of their names.
   *
   * @throws Error - Parts of a policy that do not fit together; batches of whole calls have none.
   */
  joined(): MultiAgentBatch {
    const parts = new Map<string, PolicyBatch[]>();
    for (const part of this.policies) {
      parts.set(part.policy, [...(parts.get(part.policy) ?? []), part]);
    }
    const begins = positionsOf(this.lengths, (_, part) => part === 0 || !this.#continues(part));
    const ends = begins.map((_, place) => (begins[place + 1] ?? this.numEpisodes) - 1);
    const sums = (values: Uint32Array): Uint32Array =>
      Uint32Array.from(begins, (begin, place) => values.subarray(begin, begins[place + 1]).reduce((a, b) => a + b, 0));
    return new MultiAgentBatch(
      {
        agents: this.agents,
        episodeIndices: BigUint64Array.from(begins, (part) => this.episodeIndices[part] ?? 0n),
        firstSteps: BigUint64Array.from(begins, (part) => this.firstSteps[part] ?? 0n),
        lengths: sums(this.lengths),
        terminated: Uint8Array.from(ends, (part) => this.terminated[part] ?? 0),
        truncated: Uint8Array.from(ends, (part) => this.truncated[part] ?? 0),
        agentStepCounts: sums(this.agentStepCounts),
        policies: [...parts.keys()].sort().map((policy) => concatenatePolicy(parts.get(policy) ?? []).joined()),
        globalStates: this.globalStates,
        lastGlobalStates: this.lastGlobalStates?.gather(ends),
      },
      this.account,
    );
  }

  /**
   * Return the batch without the first environment steps of its first episode, as many as it has at most.
   *
   * @param numSteps - The number of environment steps.
   * @param numAgentSteps - The number of steps of all agents among them; by default, of those that are here.
   *
   * @internal
   */
  withoutFirstSteps(numSteps: number, numAgentSteps?: number): MultiAgentBatch {
    const stop = Number(this.firstSteps[0] ?? 0n) + numSteps;
    const rests = this.policies.map((part) => part.withoutStepsBefore(this.episodeIndices[0] ?? 0n, stop));
    const numDropped = numAgentSteps ?? rests.reduce((sum, rest) => sum + rest.numDropped, 0);
    const first = numSteps === this.lengths[0] ? 1 : 0;
    const [lengths, firstSteps] = [this.lengths.slice(first), this.firstSteps.slice(first)];
    const agentStepCounts = this.agentStepCounts.slice(first);
    if (first === 0) {
      firstSteps[0] = (firstSteps[0] ?? 0n) + BigInt(numSteps);
      lengths[0] = (lengths[0] ?? 0) - numSteps;
      agentStepCounts[0] = (agentStepCounts[0] ?? 0) - numDropped;
    }
    return new MultiAgentBatch({
      agents: this.agents,
      episodeIndices: this.episodeIndices.subarray(first),
      firstSteps,
      lengths,
      terminated: this.terminated.subarray(first),
      truncated: this.truncated.subarray(first),
      agentStepCounts,
      policies: rests.flatMap(({ rest }) => rest),
      globalStates: this.globalStates?.rows(numSteps, this.numSteps),
      lastGlobalStates: this.lastGlobalStates?.rows(first, this.numEpisodes),
    });
  }

  /**
   * Return the batch with an account.
   *
   * @internal
   */
  withAccount(account: Account): MultiAgentBatch {
    return new MultiAgentBatch(this, account);
  }

  /** Whether a part goes on where the part before it stops. */
  #continues(part: number): boolean {
    const end = (this.firstSteps[part - 1] ?? 0n) + BigInt(this.lengths[part - 1] ?? 0);
    return this.episodeIndices[part] === this.episodeIndices[part - 1] && this.firstSteps[part] === end;
  }

  /** Return the position of each environment step among all of the batch, by episode and step. */
  #rowsOfSteps(): Map<bigint, Map<number, number>> {
    const rows = new Map<bigint, Map<number, number>>();
    let row = 0;
    this.lengths.forEach((length, part) => {
      const index = this.episodeIndices[part] ?? 0n;
      const ofEpisode = rows.get(index) ?? new Map<number, number>();
      rows.set(index, ofEpisode);
      const first = Number(this.firstSteps[part] ?? 0n);
      for (let step = first; step < first + length; step += 1) {
        ofEpisode.set(step, row);
        row += 1;
      }
    });
    return rows;
  }
}

/**
 * Return the parts of all batches of one environment, in their order; `joined` makes whole episodes of them.
 *
 * @throws Error - No batches, of other agents, or global states that do not match.
 */
export function concatenateMany(batches: readonly MultiAgentBatch[]): MultiAgentBatch {
  const [first] = batches;
  if (first === undefined) {
    throw new Error(`batches: ${mismatch("at least one", "none")}`);
  }
  for (const { agents, globalStates } of batches) {
    if (agents.join("\n") !== first.agents.join("\n")) {
      throw new Error(`agents: ${mismatch(first.agents.join(", "), agents.join(", "))}`);
    }
    if ((globalStates === undefined) !== (first.globalStates === undefined)) {
      throw new Error(`globalStates: ${mismatch("states in all batches or in none", "some without")}`);
    }
  }
  const flags = (name: "terminated" | "truncated"): Uint8Array =>
    Uint8Array.from(batches.flatMap((batch) => [...batch[name]]));
  const counts = (name: "lengths" | "agentStepCounts"): Uint32Array =>
    Uint32Array.from(batches.flatMap((batch) => [...batch[name]]));
  const numbers = (name: "episodeIndices" | "firstSteps"): BigUint64Array =>
    BigUint64Array.from(batches.flatMap((batch) => [...batch[name]]));
  const states = (name: "globalStates" | "lastGlobalStates"): Tensor | undefined =>
    joinStates(
      name,
      batches.flatMap((batch) => batch[name] ?? []),
    );
  return new MultiAgentBatch({
    agents: first.agents,
    episodeIndices: numbers("episodeIndices"),
    firstSteps: numbers("firstSteps"),
    lengths: counts("lengths"),
    terminated: flags("terminated"),
    truncated: flags("truncated"),
    agentStepCounts: counts("agentStepCounts"),
    policies: batches.flatMap(({ policies }) => policies),
    globalStates: states("globalStates"),
    lastGlobalStates: states("lastGlobalStates"),
  });
}

const HEADERS = ["episodeIndices", "firstSteps", "terminated", "truncated", "agentStepCounts"] as const;

function checkLength(name: string, values: { readonly length: number }, length: number): void {
  if (values.length !== length) {
    throw new Error(`${name}: ${mismatch(`${String(length)} values`, values.length)}`);
  }
}

/** Return the states of all batches, one after the other; undefined for none. */
function joinStates(name: string, states: readonly Tensor[]): Tensor | undefined {
  const [first] = states;
  if (first === undefined) {
    return undefined;
  }
  const kind = ({ dtype, shape }: Tensor): string => `${dtype} [${shape.slice(1).join(", ")}]`;
  const numStates = states.reduce((sum, { length }) => sum + length, 0);
  const joined = zeros(first.dtype, [numStates, ...first.shape.slice(1)]);
  let row = 0;
  for (const each of states) {
    if (kind(each) !== kind(first)) {
      throw new Error(`${name}: ${mismatch(kind(first), kind(each))}`);
    }
    for (let from = 0; from < each.length; from += 1) {
      joined.setRow(row, each, from);
      row += 1;
    }
  }
  return joined;
}

/** Return the segments of all parts, which are of one policy, in their order. */
function concatenatePolicy(parts: readonly PolicyBatch[]): PolicyBatch {
  const [first] = parts;
  if (first === undefined || parts.length === 1) {
    return first ?? failWithoutParts();
  }
  return new PolicyBatch({
    policy: first.policy,
    batch: concatenate(
      parts.map(({ batch }) => batch),
      () => false,
    ),
    agentPositions: Uint32Array.from(parts.flatMap(({ agentPositions }) => [...agentPositions])),
    envSteps: Uint32Array.from(parts.flatMap(({ envSteps }) => [...envSteps])),
    rewardsBefore: Float64Array.from(parts.flatMap(({ rewardsBefore }) => [...rewardsBefore])),
  });
}

function failWithoutParts(): never {
  throw new Error(`parts: ${mismatch("at least one", "none")}`);
}

function positionsOf(values: Uint32Array, matches: (value: number, position: number) => boolean): number[] {
  const positions: number[] = [];
  values.forEach((value, position) => {
    if (matches(value, position)) {
      positions.push(position);
    }
  });
  return positions;
}

function zeros(dtype: DType, shape: readonly number[]): Tensor {
  return new Tensor(dtype, shape, new Uint8Array(sizeOf(shape) * itemSize(dtype)));
}

/** Return columns of zeros for an agent of a policy. */
function emptySteps({ observations, actions }: EpisodeBatch, numSteps: number): AgentSteps {
  const empty = (columns: Columns): Columns =>
    new Columns(
      Array.from(columns, ([name, { dtype, shape }]) => [name, zeros(dtype, [numSteps, ...shape.slice(1)])] as const),
    );
  return {
    acted: new Uint8Array(numSteps),
    observations: empty(observations),
    actions: empty(actions),
    rewards: new Float64Array(numSteps),
    terminated: new Uint8Array(numSteps),
    truncated: new Uint8Array(numSteps),
    policyVersions: new BigInt64Array(numSteps),
  };
}

/** Write the steps of a segment, whose first step of its batch is given, to the rows of their environment steps. */
function putSegment(
  to: AgentSteps,
  { batch, envSteps }: PolicyBatch,
  segment: number,
  first: number,
  rows: ReadonlyMap<bigint, ReadonlyMap<number, number>>,
): void {
  const ofEpisode = rows.get(batch.episodeIndices[segment] ?? 0n);
  const end = first + (batch.lengths[segment] ?? 0);
  for (let step = first; step < end; step += 1) {
    const row = ofEpisode?.get(envSteps[step] ?? 0);
    if (row === undefined) {
      continue;
    }
    to.acted[row] = 1;
    to.rewards[row] = batch.rewards[step] ?? 0;
    to.policyVersions[row] = batch.policyVersions[segment] ?? 0n;
    for (const group of ["observations", "actions"] as const) {
      for (const [name, column] of batch[group]) {
        to[group].column(name).setRow(row, column, step);
      }
    }
    if (step === end - 1) {
      to.terminated[row] = batch.terminated[segment] ?? 0;
      to.truncated[row] = batch.truncated[segment] ?? 0;
    }
  }
}
