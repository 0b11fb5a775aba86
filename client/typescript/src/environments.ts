/**
 * Environments as callers specify them, and the results of updating them.
 *
 * @packageDocumentation
 */

import { create, type MessageInitShape } from "@bufbuild/protobuf";

import {
  EnvironmentSchema,
  EnvironmentUpdateSchema,
  MultiAgentApi as MultiAgentApiNumber,
  Vectorization as VectorizationNumber,
} from "./generated/rollserve/v1/environment_pb.js";
import type { Environment, EnvironmentUpdate, TaskSchema } from "./generated/rollserve/v1/environment_pb.js";
import type { UpdateEnvResponse } from "./generated/rollserve/v1/sampler_service_pb.js";
import { uint32 } from "./integers.js";
import { kwargsFromJson, kwargsToJson, valueToJson, type Json, type Kwargs } from "./json_arguments.js";
import { reproducibilityFrom, type Reproducibility } from "./reproducibility.js";
import { spaceFromMessage, type Space } from "./spaces.js";
import { transformToMessage, transformsFromMessage, type Transform } from "./transforms.js";

/** How the rows of an environment are stepped: one by one, or together by its own code or by EnvPool. */
export type Vectorization = "rows" | "native" | "envpool";

/** An interface of PettingZoo's environments: all agents act in each step, or one after the other. */
export type MultiAgentApi = "parallel" | "aec";

/** A wrapper of `gymnasium.wrappers`. */
export interface Wrapper {
  /** The name of the class. */
  readonly name: string;
  /** Its keyword arguments without the environment. */
  readonly kwargs?: Kwargs | undefined;
}

/** A task that an environment can be set to without being made again. */
export interface Task {
  /** The name of the environment's method that sets the task. */
  readonly method: string;
  /** The method's only argument. */
  readonly argument: Json;
}

/** A specification of an environment; environment.proto describes each part. */
export interface EnvSpec {
  /** An id such as `CartPole-v1`, `module:Id` or `profile:NAME`. */
  readonly id: string;
  /** The keyword arguments of `gymnasium.make` or of the class. */
  readonly kwargs?: Kwargs | undefined;
  /** Wrappers around the environment, innermost first. */
  readonly wrappers?: readonly Wrapper[] | undefined;
  /** Changes of rewards, actions and observations, innermost first. */
  readonly transforms?: readonly Transform[] | undefined;
  /** The task that is set after the environment is made. */
  readonly task?: Task | undefined;
  /** The `options` of each reset. */
  readonly resetOptions?: Kwargs | undefined;
  /** How rows are stepped; the server's setting by default. */
  readonly vectorization?: Vectorization | undefined;
  /** The number of rows that each worker steps at once for a call; the server's setting by default. */
  readonly numRows?: number | undefined;
  /** The number of episodes of each row in a block of rows that are stepped together; the server's by default. */
  readonly numEpisodesPerRow?: number | undefined;
  /** The interface of an environment with many agents, whose calls are those of `sampler.multiAgent`. */
  readonly multiAgent?: MultiAgentApi | undefined;
  /** Whether batches have the environment's global state; only for environments with many agents. */
  readonly globalState?: boolean | undefined;
}

/** A change of the present environment. What the change leaves out stays as it is. */
export interface EnvChange {
  /** Keyword arguments that are added to the present ones, or replace them. */
  readonly kwargs?: Kwargs | undefined;
  /** The new task. */
  readonly task?: Task | undefined;
  /** The `options` of each reset from now on. */
  readonly resetOptions?: Kwargs | undefined;
}

/**
 * An update of the environments of a worker: an id, a specification, a change of the present environment, or a list
 * with a specification or a change for each row, where null leaves the row's environment as it is.
 */
export type EnvUpdate = string | EnvSpec | EnvChange | readonly (EnvSpec | EnvChange | null)[];

/** The result of an update of the environments. */
export interface EnvUpdateResult {
  /** The version of the new environments. */
  readonly envVersion: bigint;
  /** The space of their observations. */
  readonly observationSpace: Space;
  /** The space of their actions. */
  readonly actionSpace: Space;
  /** Which unit of work the same seed gives again. */
  readonly reproducibility: Reproducibility;
  /** The number of rows that each worker steps at once for a call. */
  readonly numRows: number;
  /** The number of episodes of each row in a block; undefined unless the class is `block`. */
  readonly numEpisodesPerRow: number | undefined;
  /**
   * The names of the possible agents of an environment with many agents, whose spaces are Dict spaces that have the
   * agents' by these names; empty with one agent.
   */
  readonly agents: readonly string[];
}

const MULTI_AGENT_APIS: Readonly<Record<MultiAgentApi, MultiAgentApiNumber>> = {
  parallel: MultiAgentApiNumber.PARALLEL,
  aec: MultiAgentApiNumber.AEC,
};

const VECTORIZATIONS: Readonly<Record<Vectorization, VectorizationNumber>> = {
  rows: VectorizationNumber.ROWS,
  native: VectorizationNumber.NATIVE,
  envpool: VectorizationNumber.ENVPOOL,
};

/**
 * Return a specification as a message.
 *
 * @throws InvalidArgumentError - A value that JSON cannot hold, or a number out of range.
 */
export function envSpecToMessage(spec: EnvSpec): Environment {
  return create(EnvironmentSchema, {
    id: spec.id,
    kwargsJson: kwargsToJson("env.kwargs", spec.kwargs),
    wrappers: (spec.wrappers ?? []).map(({ name, kwargs }) => ({
      name,
      kwargsJson: kwargsToJson("env.wrappers", kwargs),
    })),
    transforms: (spec.transforms ?? []).map(transformToMessage),
    ...taskOf(spec.task),
    resetOptionsJson: kwargsToJson("env.resetOptions", spec.resetOptions),
    vectorization:
      spec.vectorization === undefined ? VectorizationNumber.UNSPECIFIED : VECTORIZATIONS[spec.vectorization],
    rowCount: uint32("env.numRows", spec.numRows ?? 0),
    episodesPerRow: uint32("env.numEpisodesPerRow", spec.numEpisodesPerRow ?? 0),
    multiAgent: spec.multiAgent === undefined ? MultiAgentApiNumber.UNSPECIFIED : MULTI_AGENT_APIS[spec.multiAgent],
    globalState: spec.globalState ?? false,
  });
}

/** Return the specification that a message describes. */
export function envSpecFromMessage(message: Environment): EnvSpec {
  const vectorization = (Object.keys(VECTORIZATIONS) as Vectorization[]).find(
    (name) => VECTORIZATIONS[name] === message.vectorization,
  );
  const multiAgent = (Object.keys(MULTI_AGENT_APIS) as MultiAgentApi[]).find(
    (name) => MULTI_AGENT_APIS[name] === message.multiAgent,
  );
  const { task } = message;
  return {
    id: message.id,
    kwargs: kwargsFromJson(message.kwargsJson),
    wrappers: message.wrappers.map(({ name, kwargsJson }) => ({ name, kwargs: kwargsFromJson(kwargsJson) })),
    resetOptions: kwargsFromJson(message.resetOptionsJson),
    ...(message.transforms.length === 0 ? {} : { transforms: message.transforms.flatMap(transformsFromMessage) }),
    ...(task === undefined ? {} : { task: { method: task.method, argument: JSON.parse(task.argumentJson) as Json } }),
    ...(vectorization === undefined ? {} : { vectorization }),
    ...(message.rowCount === 0 ? {} : { numRows: message.rowCount }),
    ...(message.episodesPerRow === 0 ? {} : { numEpisodesPerRow: message.episodesPerRow }),
    ...(multiAgent === undefined ? {} : { multiAgent }),
    ...(message.globalState ? { globalState: true } : {}),
  };
}

/**
 * Return an update of a worker's environments as a message.
 *
 * @throws InvalidArgumentError - A value that JSON cannot hold, or a number out of range.
 */
export function envUpdateToMessage(update: EnvUpdate | null): EnvironmentUpdate {
  return create(EnvironmentUpdateSchema, updateOf(update));
}

/** Whether an update keeps or changes any of the present environments, instead of replacing all of them. */
export function keepsAny(update: EnvironmentUpdate): boolean {
  return update.update.case === "perRow"
    ? update.update.value.updates.some(keepsAny)
    : update.update.case !== "environment";
}

/** Return the result that a response describes. */
export function envUpdateResultFrom(response: UpdateEnvResponse): EnvUpdateResult {
  return {
    envVersion: response.environmentVersion,
    observationSpace: spaceFromMessage(response.observationSpace),
    actionSpace: spaceFromMessage(response.actionSpace),
    reproducibility: reproducibilityFrom(response.reproducibility),
    numRows: response.rowCount,
    numEpisodesPerRow: response.episodesPerRow === 0 ? undefined : response.episodesPerRow,
    agents: [...response.agents],
  };
}

function updateOf(update: EnvUpdate | null): MessageInitShape<typeof EnvironmentUpdateSchema> {
  if (update === null) {
    return {};
  }
  if (typeof update === "string") {
    return { update: { case: "environment", value: envSpecToMessage({ id: update }) } };
  }
  if (Array.isArray(update)) {
    const updates = (update as readonly (EnvSpec | EnvChange | null)[]).map(envUpdateToMessage);
    return { update: { case: "perRow", value: { updates } } };
  }
  const single = update as EnvSpec | EnvChange;
  if ("id" in single) {
    return { update: { case: "environment", value: envSpecToMessage(single) } };
  }
  const { kwargs, task, resetOptions } = single;
  const resetOptionsJson = kwargsToJson("env.resetOptions", resetOptions);
  return {
    update: {
      case: "change",
      value: {
        kwargsJson: kwargsToJson("env.kwargs", kwargs),
        ...taskOf(task),
        ...(resetOptions === undefined ? {} : { resetOptionsJson }),
      },
    },
  };
}

function taskOf(task: Task | undefined): { task?: MessageInitShape<typeof TaskSchema> } {
  if (task === undefined) {
    return {};
  }
  return { task: { method: task.method, argumentJson: valueToJson("env.task.argument", task.argument) } };
}
