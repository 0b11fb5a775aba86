/**
 * Policies by name for environments with many agents, and maps from agents to policies: data, not code.
 *
 * @packageDocumentation
 */

import { create } from "@bufbuild/protobuf";

import { PolicyMapSchema, type PolicyMap as PolicyMapMessage } from "./generated/rollserve/v1/policies_pb.js";
import { int64, uint32, type Integer } from "./integers.js";

/** A version of a policy that may act. */
export interface PolicyChoice {
  /** The name of the policy. */
  readonly policy: string;
  /**
   * 0, the default, for the policy's current version; -k for the k-th version before it, or the oldest one that is
   * held; or a version's number.
   */
  readonly version?: Integer | undefined;
  /**
   * The weight among the choices of the rule, 1 by default; the chance of a choice is its part of their sum. A choice
   * of weight 0 never acts, and the server holds it for evaluations.
   */
  readonly weight?: number | undefined;
}

/**
 * The policies of some agents: of the agent of a `name`, of those whose names begin with a `prefix`, or of the agent at
 * a `position` among the environment's possible agents, from 0.
 *
 * One of several choices is drawn for each episode, for all agents of the rule together.
 */
export type PolicyRule = ({ readonly name: string } | { readonly prefix: string } | { readonly position: number }) & {
  /** The name of a policy, whose current version acts; or one or more choices. */
  readonly choices: string | PolicyChoice | readonly PolicyChoice[];
};

/**
 * Which policy acts for which agent. Where several rules match an agent, its name comes before its position, and that
 * before the longest prefix.
 *
 * The random numbers of an episode belong to the positions of the rules: the same rules in another order draw other
 * policies.
 *
 * @example
 * ```ts
 * const map: PolicyMap = [
 *   { name: "player_0", choices: "main" },
 *   { prefix: "", choices: [{ policy: "main", weight: 0.8 }, { policy: "main", version: -1, weight: 0.2 }] },
 * ];
 * ```
 */
export type PolicyMap = readonly PolicyRule[];

/**
 * Return a map as a message.
 *
 * @throws InvalidArgumentError - A position or a version out of range.
 */
export function policyMapToMessage(map: PolicyMap): PolicyMapMessage {
  return create(PolicyMapSchema, {
    rules: map.map((rule) => ({ agents: agentsOf(rule), choices: choicesOf(rule.choices) })),
  });
}

type Agents = { case: "name" | "prefix"; value: string } | { case: "position"; value: number };

function agentsOf(rule: PolicyRule): Agents {
  if ("position" in rule) {
    return { case: "position", value: uint32("position", rule.position) };
  }
  return "name" in rule ? { case: "name", value: rule.name } : { case: "prefix", value: rule.prefix };
}

function choicesOf(choices: PolicyRule["choices"]): { policy: string; version: bigint; weight: number }[] {
  const single = typeof choices === "string" ? { policy: choices } : choices;
  return (Array.isArray(single) ? (single as readonly PolicyChoice[]) : [single as PolicyChoice]).map(
    ({ policy, version = 0, weight = 1 }) => ({ policy, version: int64("version", version), weight }),
  );
}
