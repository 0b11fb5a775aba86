/**
 * Returns of each agent and each policy in evaluations of environments with many agents.
 *
 * @packageDocumentation
 */

import { mismatch } from "./errors.js";
import type { AgentReturns as AgentReturnsMessage } from "./generated/rollserve/v1/evaluation_pb.js";

/** A version of a policy. */
export interface PolicyVersion {
  /** The name of the policy. */
  readonly policy: string;
  /** The number of the update of the agent that made it. */
  readonly version: bigint;
}

/** What P agents got in N episodes of an environment with many agents, and which of K policies acted for them. */
export class AgentReturns {
  /** (P). The names of the environment's possible agents. */
  readonly agents: readonly string[];
  /** (K). The versions of policies that acted. */
  readonly policies: readonly PolicyVersion[];
  /**
   * (N * P). The return of each agent in each episode: first of all agents in the first episode, and so on. NaN for an
   * agent that made no step in the episode.
   */
  readonly returns: Float64Array;
  /** (N * P). The position among `policies` of what acted for each agent; -1 for an agent that made no step. */
  readonly policyPositions: Int32Array;

  /**
   * Read a message.
   *
   * @throws Error - Another number of values than one for each agent of each episode.
   *
   * @internal
   */
  constructor(message: AgentReturnsMessage, numEpisodes: number) {
    this.agents = [...message.agents];
    this.policies = message.policies.map(({ policy, version }) => ({ policy, version }));
    this.returns = Float64Array.from(message.returns);
    this.policyPositions = Int32Array.from(message.policyPositions);
    const size = numEpisodes * this.agents.length;
    for (const values of [this.returns, this.policyPositions]) {
      if (values.length !== size) {
        const expected = `${String(size)} values, one for each agent of each episode`;
        throw new Error(`agentReturns: ${mismatch(expected, values.length)}`);
      }
    }
  }

  /** Return the returns of each agent, by its name, in the episodes in which it made a step. */
  byAgent(): Map<string, Float64Array> {
    return new Map(
      this.agents.flatMap((agent, column) => {
        const ofAgent = this.returns.filter(
          (_, place) => place % this.agents.length === column && (this.policyPositions[place] ?? -1) >= 0,
        );
        return ofAgent.length === 0 ? [] : [[agent, ofAgent] as const];
      }),
    );
  }

  /**
   * Return the returns of each policy, by `name@version`.
   *
   * Of an episode in which a policy acts for several agents, the mean of their returns counts: they depend on each
   * other.
   */
  byPolicy(): Map<string, Float64Array> {
    return new Map(
      this.policies.map(({ policy, version }, position) => [
        `${policy}@${String(version)}`,
        Float64Array.from(this.#meansOf(position)),
      ]),
    );
  }

  /** Yield the mean return of a policy's agents in each episode in which it acted. */
  *#meansOf(position: number): Generator<number> {
    const numAgents = this.agents.length;
    for (let begin = 0; begin < this.returns.length; begin += numAgents) {
      const positions = this.policyPositions.subarray(begin, begin + numAgents);
      const own = this.returns.subarray(begin, begin + numAgents).filter((_, agent) => positions[agent] === position);
      if (own.length > 0) {
        yield own.reduce((sum, value) => sum + value, 0) / own.length;
      }
    }
  }
}
