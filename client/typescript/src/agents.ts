/**
 * Agents as callers specify them; the server evaluates them.
 *
 * @packageDocumentation
 */

import { create, type MessageInitShape } from "@bufbuild/protobuf";

import { AgentSchema, ParametersSchema, type ActionMaskSchema } from "./generated/rollserve/v1/agent_pb.js";
import type {
  Agent as AgentMessage,
  OnnxAgent as OnnxMessage,
  Parameters as ParametersMessage,
} from "./generated/rollserve/v1/agent_pb.js";
import {
  AgentUpdateSchema,
  PolicyUpdatesSchema,
  type AgentUpdate as AgentUpdateMessage,
  type PolicyUpdates,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { kwargsToJson, type Kwargs } from "./json_arguments.js";
import { policyMapToMessage, type PolicyMap } from "./policies.js";
import { Columns, Tensor } from "./tensor.js";
import { namedTensorsToMessages } from "./tensor_messages.js";

/** Parameters of an agent by name. */
export type Parameters = ReadonlyMap<string, Tensor> | Readonly<Record<string, Tensor>>;

/**
 * A whole agent, or parameters for the present one: all of an MLP, any of an ONNX or Python agent; or a change of the
 * settings of the present Python agent; or policies by name, for an environment with many agents.
 */
export type AgentUpdate = PolicyUpdate | Policies;

/** An update of a single policy. */
export type PolicyUpdate = Agent | Parameters | AgentChange;

/** The source of an agent's action mask: an info of the environment, or a leaf of the observation space. */
export type ActionMask = { readonly info: string } | { readonly observation: string };

/** Settings of agents of all kinds. */
export interface MaskSettings {
  /**
   * The source of the action mask, which says for each action of a Discrete or MultiDiscrete space whether it is legal.
   */
  readonly actionMask?: ActionMask | undefined;
}

/** A change of the settings of the present agent, a Python agent, which keeps its code and its other parameters. */
export class AgentChange {
  /** Keyword arguments that are added to the present ones, or replace them. */
  readonly kwargs: Kwargs;
  /** Parameters that are added to the present ones, or replace them. */
  readonly parameters: ReadonlyMap<string, Tensor>;

  /** Make a change. */
  constructor(change: { readonly kwargs?: Kwargs | undefined; readonly parameters?: Parameters | undefined }) {
    this.kwargs = change.kwargs ?? {};
    this.parameters = parametersByName(change.parameters);
  }
}

/** Policies by name, for an environment with many agents, or updates of some of them. */
export class Policies {
  /**
   * A whole agent, parameters or an `AgentChange` for each new or changed policy. The policies that are left out stay
   * as they are, as long as the map names them.
   */
  readonly updates: Readonly<Record<string, PolicyUpdate>>;
  /**
   * Which policy acts for which agent; undefined for the present map. Before there is one, a policy acts for the agent
   * of its name and for agents whose names are its name, `_` and more, and a single policy for all.
   */
  readonly map: PolicyMap | undefined;

  /** Make an update. */
  constructor(updates: Readonly<Record<string, PolicyUpdate>>, map?: PolicyMap) {
    this.updates = updates;
    this.map = map;
  }
}

/** Return the field of a message with a mask, if there is one. */
export function maskOf({ actionMask }: MaskSettings): { actionMask?: MessageInitShape<typeof ActionMaskSchema> } {
  if (actionMask === undefined) {
    return {};
  }
  const source =
    "info" in actionMask
      ? { case: "info" as const, value: actionMask.info }
      : { case: "observation" as const, value: actionMask.observation };
  return { actionMask: { source } };
}

/** What acts in the environment. */
export abstract class Agent {
  /**
   * Return the agent as a message.
   *
   * @internal
   */
  abstract toMessage(): AgentMessage;
}

/** An agent that draws actions uniformly from the action space, as `gymnasium.Space.sample` does. */
export class RandomAgent extends Agent {
  /** The settings. */
  readonly settings: MaskSettings;

  /** Make an agent. */
  constructor(settings: MaskSettings = {}) {
    super();
    this.settings = settings;
  }

  /** @internal */
  override toMessage(): AgentMessage {
    return create(AgentSchema, { kind: { case: "random", value: maskOf(this.settings) } });
  }
}

/** An agent that always takes the same action. */
export class ConstantAgent extends Agent {
  /** The action: one value for each leaf of the action space; `action.plain` of a space that is no Dict or Tuple. */
  readonly action: Columns;
  /** The settings. A masked action is an error. */
  readonly settings: MaskSettings;

  /** Make an agent of an action: a value of the action space, or one for each leaf of a Dict or Tuple space. */
  constructor(action: Tensor | ReadonlyMap<string, Tensor>, settings: MaskSettings = {}) {
    super();
    this.action = new Columns(action instanceof Tensor ? [["", action]] : action);
    this.settings = settings;
  }

  /** @internal */
  override toMessage(): AgentMessage {
    const value = { action: namedTensorsToMessages(this.action), ...maskOf(this.settings) };
    return create(AgentSchema, { kind: { case: "constant", value } });
  }
}

/**
 * The meaning of an ONNX model's outputs. `categorical` takes `logits`; `diagonalGaussian` and `squashedGaussian` take
 * `mean` and `log_std`; `actions` takes `action`, or `action/NAME` for each leaf, and optionally `log_prob`.
 */
export type OnnxHead = "categorical" | "diagonalGaussian" | "squashedGaussian" | "actions";

/** Names of an ONNX model, and its action mask. */
export interface OnnxNames extends MaskSettings {
  /** The names of inputs by role, where they differ from the role. */
  readonly inputs?: Readonly<Record<string, string>> | undefined;
  /** The names of outputs by role, where they differ from the role. */
  readonly outputs?: Readonly<Record<string, string>> | undefined;
  /** The names of further outputs, which become agentInfos. */
  readonly infos?: readonly string[] | undefined;
}

/** A model in the ONNX format; the comment on OnnxAgent in agent.proto describes its inputs, outputs and parameters. */
export class OnnxAgent extends Agent {
  /** The serialized ModelProto. */
  readonly model: Uint8Array;
  /** The meaning of the outputs. */
  readonly head: OnnxHead;
  /** Names that differ from the roles. */
  readonly names: OnnxNames;

  /** Make an agent of a model. */
  constructor(model: Uint8Array, head: OnnxHead, names: OnnxNames = {}) {
    super();
    this.model = model;
    this.head = head;
    this.names = names;
  }

  /** @internal */
  override toMessage(): AgentMessage {
    const { inputs = {}, outputs = {}, infos = [] } = this.names;
    const head = { case: this.head, value: {} } as OnnxMessage["head"];
    const value = { model: this.model, inputs: { ...inputs }, outputs: { ...outputs }, head, infos: [...infos] };
    return create(AgentSchema, { kind: { case: "onnx", value: { ...value, ...maskOf(this.names) } } });
  }
}

/** An agent in Python that is installed with the server. */
export class PythonAgent extends Agent {
  /** The name of an entry point of the group `rollserve.agents`. */
  readonly name: string;
  /** The keyword arguments of its factory. */
  readonly kwargs: Kwargs;
  /** The parameters by name. */
  readonly parameters: ReadonlyMap<string, Tensor>;
  /** The settings. The policy gets the mask if it asks for it. */
  readonly settings: MaskSettings;

  /** Make an agent of an entry point. */
  constructor(
    name: string,
    options: MaskSettings & {
      readonly kwargs?: Kwargs | undefined;
      readonly parameters?: Parameters | undefined;
    } = {},
  ) {
    super();
    this.name = name;
    this.kwargs = options.kwargs ?? {};
    this.parameters = parametersByName(options.parameters);
    this.settings = options;
  }

  /** @internal */
  override toMessage(): AgentMessage {
    const kwargsJson = kwargsToJson("agent.kwargs", this.kwargs);
    const parameters = parametersToMessage(this.parameters);
    const value = { name: this.name, kwargsJson, parameters, ...maskOf(this.settings) };
    return create(AgentSchema, { kind: { case: "python", value } });
  }
}

/** Return parameters as a map; a map stays itself. */
export function parametersByName(parameters: Parameters = {}): ReadonlyMap<string, Tensor> {
  return parameters instanceof Map ? (parameters as ReadonlyMap<string, Tensor>) : new Map(Object.entries(parameters));
}

/** Return parameters as a message. */
export function parametersToMessage(parameters: Parameters): ParametersMessage {
  return create(ParametersSchema, { tensors: namedTensorsToMessages(parametersByName(parameters)) });
}

/** Return an update as a message; null keeps a worker's agent. */
export function agentUpdateToMessage(update: AgentUpdate | null): AgentUpdateMessage {
  if (update === null) {
    return create(AgentUpdateSchema);
  }
  if (update instanceof Policies) {
    return create(AgentUpdateSchema, { update: { case: "policies", value: policiesToMessage(update) } });
  }
  if (update instanceof AgentChange) {
    const kwargsJson = kwargsToJson("agent.kwargs", update.kwargs);
    const value = { kwargsJson, parameters: parametersToMessage(update.parameters) };
    return create(AgentUpdateSchema, { update: { case: "change", value } });
  }
  return create(AgentUpdateSchema, {
    update:
      update instanceof Agent
        ? { case: "agent", value: update.toMessage() }
        : { case: "parameters", value: parametersToMessage(update) },
  });
}

function policiesToMessage({ updates, map }: Policies): PolicyUpdates {
  const policies = Object.entries(updates).map(([name, update]) => [name, agentUpdateToMessage(update)] as const);
  return create(PolicyUpdatesSchema, {
    policies: Object.fromEntries(policies),
    ...(map === undefined ? {} : { policyMap: policyMapToMessage(map) }),
  });
}
