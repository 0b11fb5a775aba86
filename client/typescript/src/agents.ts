/**
 * Agents as callers specify them; the server evaluates them.
 *
 * @packageDocumentation
 */

import { create } from "@bufbuild/protobuf";

import { AgentSchema, ParametersSchema } from "./generated/rollserve/v1/agent_pb.js";
import type {
  Agent as AgentMessage,
  OnnxAgent as OnnxMessage,
  Parameters as ParametersMessage,
} from "./generated/rollserve/v1/agent_pb.js";
import {
  AgentUpdateSchema,
  type AgentUpdate as AgentUpdateMessage,
} from "./generated/rollserve/v1/sampler_service_pb.js";
import { kwargsToJson, type Kwargs } from "./json_arguments.js";
import { Columns, Tensor } from "./tensor.js";
import { namedTensorsToMessages } from "./tensor_messages.js";

/** Parameters of an agent by name. */
export type Parameters = ReadonlyMap<string, Tensor> | Readonly<Record<string, Tensor>>;

/** A whole agent, or parameters for the present one: all of an MLP, any of an ONNX or Python agent. */
export type AgentUpdate = Agent | Parameters;

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
  /** @internal */
  override toMessage(): AgentMessage {
    return create(AgentSchema, { kind: { case: "random", value: {} } });
  }
}

/** An agent that always takes the same action. */
export class ConstantAgent extends Agent {
  /** The action: a value of the action space, or one for each leaf of a Dict or Tuple space. */
  readonly action: Tensor | ReadonlyMap<string, Tensor>;

  /** Make an agent of an action. */
  constructor(action: Tensor | ReadonlyMap<string, Tensor>) {
    super();
    this.action = action;
  }

  /** @internal */
  override toMessage(): AgentMessage {
    const leaves = this.action instanceof Tensor ? new Columns([["", this.action]]) : this.action;
    return create(AgentSchema, { kind: { case: "constant", value: { action: namedTensorsToMessages(leaves) } } });
  }
}

/**
 * The meaning of an ONNX model's outputs. `categorical` takes `logits`; `diagonalGaussian` and `squashedGaussian` take
 * `mean` and `log_std`; `actions` takes `action`, or `action/NAME` for each leaf, and optionally `log_prob`.
 */
export type OnnxHead = "categorical" | "diagonalGaussian" | "squashedGaussian" | "actions";

/** Names of an ONNX model. */
export interface OnnxNames {
  /** The names of inputs by role, where they differ from the role. */
  readonly inputs?: Readonly<Record<string, string>>;
  /** The names of outputs by role, where they differ from the role. */
  readonly outputs?: Readonly<Record<string, string>>;
  /** The names of further outputs, which become agentInfos. */
  readonly infos?: readonly string[];
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
    return create(AgentSchema, { kind: { case: "onnx", value } });
  }
}

/** An agent in Python that is installed with the server. */
export class PythonAgent extends Agent {
  /** The name of an entry point of the group `rollserve.agents`. */
  readonly name: string;
  /** The keyword arguments of its factory. */
  readonly kwargs: Kwargs;
  /** The parameters by name. */
  readonly parameters: Parameters;

  /** Make an agent of an entry point. */
  constructor(name: string, options: { readonly kwargs?: Kwargs; readonly parameters?: Parameters } = {}) {
    super();
    this.name = name;
    this.kwargs = options.kwargs ?? {};
    this.parameters = options.parameters ?? {};
  }

  /** @internal */
  override toMessage(): AgentMessage {
    const kwargsJson = kwargsToJson("agent.kwargs", this.kwargs);
    const parameters = parametersToMessage(this.parameters);
    return create(AgentSchema, { kind: { case: "python", value: { name: this.name, kwargsJson, parameters } } });
  }
}

/** Return parameters as pairs of a name and a tensor. */
export function parameterEntries(parameters: Parameters): Iterable<readonly [string, Tensor]> {
  return parameters instanceof Map
    ? (parameters as ReadonlyMap<string, Tensor>).entries()
    : Object.entries(parameters as Readonly<Record<string, Tensor>>);
}

/** Return parameters as a message. */
export function parametersToMessage(parameters: Parameters): ParametersMessage {
  return create(ParametersSchema, { tensors: namedTensorsToMessages(parameterEntries(parameters)) });
}

/** Return an update as a message. */
export function agentUpdateToMessage(update: AgentUpdate): AgentUpdateMessage {
  return create(AgentUpdateSchema, {
    update:
      update instanceof Agent
        ? { case: "agent", value: update.toMessage() }
        : { case: "parameters", value: parametersToMessage(update) },
  });
}
