/** Arguments of operations, as the package takes them. */

import {
  AgentChange,
  ConstantAgent,
  MlpAgent,
  OnnxAgent,
  Policies,
  PythonAgent,
  RandomAgent,
  Tensor,
  type ActionMask,
  type Activation,
  type DType,
  type EvaluationOptions,
  type Kwargs,
  type MlpHead,
  type OnnxHead,
  type PolicyMap,
  type PolicyUpdate,
  type SamplingOptions,
  type TypedArray,
} from "rollserve";

/** An array of an operation. */
export interface ArrayFields {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly base64: string;
}

/** Arrays by name. */
export type Arrays = Readonly<Record<string, ArrayFields>>;

/** An agent of an operation. */
export type AgentFields = KindFields & { readonly action_mask?: ActionMask };

type KindFields =
  | { readonly kind: "random" }
  | { readonly kind: "constant"; readonly action: Arrays }
  | {
      readonly kind: "mlp";
      readonly layer_sizes: readonly number[]; // which the shapes of the parameters say, too
      readonly activation?: string;
      readonly head: string;
      readonly parameters: Arrays;
      readonly normalization_epsilon?: number;
      readonly normalization_clip?: number;
    }
  | {
      readonly kind: "onnx";
      readonly model: string;
      readonly head: string;
      readonly inputs?: Readonly<Record<string, string>>;
      readonly outputs?: Readonly<Record<string, string>>;
      readonly infos?: readonly string[];
    }
  | { readonly kind: "python"; readonly name: string; readonly kwargs?: Kwargs; readonly parameters?: Arrays };

/** A change of the present agent. */
export interface ChangeFields {
  readonly kwargs?: Kwargs;
  readonly parameters?: Arrays;
}

/** An agent, or parameters or a change for the present one. */
export interface SingleUpdateFields {
  readonly change?: ChangeFields | undefined;
  readonly agent?: AgentFields | undefined;
  readonly parameters?: Arrays | undefined;
}

/** Updates of policies by name. */
export interface PolicyFields {
  readonly policies?: Readonly<Record<string, SingleUpdateFields>>;
  readonly policy_map?: PolicyMap | undefined;
}

/** An update of an agent, or of policies. */
export type UpdateFields = SingleUpdateFields & PolicyFields;

/** Options of a call. */
export interface OptionFields extends UpdateFields {
  readonly seed?: string;
  readonly first_episode_index?: number;
  readonly max_episode_length?: number;
  readonly policy_version?: number;
  readonly min_policy_version?: number;
  readonly environment_version?: number;
  readonly expected_num_workers?: number;
  readonly deterministic?: boolean;
  readonly return_states?: boolean;
  readonly return_last_values?: boolean;
  readonly return_last_states?: boolean;
  readonly return_returns_before?: boolean | undefined; // which this client always asks for
  readonly skip_failed_episodes?: boolean;
  readonly plain_frames?: boolean;
  readonly prefetch?: boolean;
  readonly temperatures?: readonly number[];
  readonly noise_scales?: readonly number[];
  readonly epsilons?: readonly number[];
  readonly deliver?: readonly string[];
  readonly count?: string;
}

/** The error of what the kit asks for and this client does not have. */
export class Unsupported extends Error {
  /** Throw unless nothing is left of an object, so that no field is overlooked. */
  static unlessEmpty(others: object): void {
    const names = Object.entries(others).flatMap(([name, value]) => (value === undefined ? [] : [name]));
    if (names.length > 0) {
      throw new Unsupported(`the field ${names.join(", ")}`);
    }
  }
}

const ARRAYS: Readonly<Record<DType, new (buffer: ArrayBuffer) => TypedArray>> = {
  bool: Uint8Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  float16: Uint16Array,
  float32: Float32Array,
  float64: Float64Array,
};

/** Return updates of policies. */
export function policies({ policies: fields = {}, policy_map, ...others }: PolicyFields): Policies {
  Unsupported.unlessEmpty(others);
  const updates = Object.entries(fields).map(([name, update]) => [name, agentUpdate(update)] as const);
  return new Policies(Object.fromEntries(updates), policy_map);
}

/** Return the agent or the parameters of an operation. */
export function agentUpdate({ agent, parameters, change }: SingleUpdateFields): PolicyUpdate {
  if (change !== undefined) {
    return agentChange(change);
  }
  const mask = { actionMask: agent?.action_mask };
  switch (agent?.kind) {
    case undefined:
      return tensors(parameters);
    case "random":
      return new RandomAgent(mask);
    case "constant":
      return new ConstantAgent(tensors(agent.action), mask);
    case "mlp": {
      const settings = {
        activation: agent.activation === undefined ? undefined : (camel(agent.activation) as Activation),
        normalizationEpsilon: agent.normalization_epsilon,
        normalizationClip: agent.normalization_clip,
      };
      return new MlpAgent(tensors(agent.parameters), camel(agent.head) as MlpHead, { ...settings, ...mask });
    }
    case "onnx": {
      const { model, inputs, outputs, infos } = agent;
      const names = { inputs, outputs, infos, ...mask };
      return new OnnxAgent(Buffer.from(model, "base64"), camel(agent.head) as OnnxHead, names);
    }
    case "python":
      return new PythonAgent(agent.name, { kwargs: agent.kwargs, parameters: tensors(agent.parameters), ...mask });
    default:
      throw new Unsupported("this kind of agent");
  }
}

/** Return a change of the present agent. */
export function agentChange({ kwargs, parameters, ...others }: ChangeFields): AgentChange {
  Unsupported.unlessEmpty(others);
  return new AgentChange({ kwargs, parameters: tensors(parameters) });
}

/** Return the options of a call that samples. */
export function samplingOptions(fields: OptionFields = {}): SamplingOptions {
  const { agent, parameters, change, policies: ofPolicies, policy_map, ...options } = fields;
  const { expected_num_workers, return_states, plain_frames, prefetch, deliver, count, ...rest } = options;
  const { return_last_values, return_last_states, ...others } = { ...rest, return_returns_before: undefined };
  const single = (agent ?? parameters ?? change) ? agentUpdate(fields) : undefined;
  return {
    ...evaluationOptions(others),
    agent: ofPolicies ? policies({ policies: ofPolicies, policy_map }) : single,
    deliver,
    count: count === undefined ? undefined : (camel(count) as "envSteps" | "agentSteps"),
    returnLastValues: return_last_values,
    returnLastStates: return_last_states,
    expectedNumWorkers: expected_num_workers,
    returnStates: return_states,
    framesOnce: plain_frames === undefined ? undefined : !plain_frames,
    prefetch,
  };
}

/** Return the options of a call that evaluates, which has some of those of a call that samples. */
export function evaluationOptions(fields: OptionFields = {}): EvaluationOptions {
  const {
    seed,
    first_episode_index,
    max_episode_length,
    policy_version,
    min_policy_version,
    environment_version,
    deterministic,
    skip_failed_episodes,
    temperatures,
    noise_scales,
    epsilons,
    ...others
  } = fields;
  Unsupported.unlessEmpty(others);
  return {
    seed: seed === undefined ? undefined : BigInt(seed),
    firstEpisodeIndex: first_episode_index,
    maxEpisodeLength: max_episode_length,
    policyVersion: policy_version,
    minPolicyVersion: min_policy_version,
    envVersion: environment_version,
    deterministic,
    skipFailedEpisodes: skip_failed_episodes,
    temperature: temperatures,
    noiseScale: noise_scales,
    epsilon: epsilons,
  };
}

/** Return arrays by name as tensors. */
export function tensors(arrays: Arrays = {}): Map<string, Tensor> {
  return new Map(Object.entries(arrays).map(([name, array]) => [name, tensor(array)]));
}

function tensor({ dtype, shape, base64 }: ArrayFields): Tensor {
  const { buffer } = Uint8Array.from(Buffer.from(base64, "base64"));
  return Tensor.of(new ARRAYS[dtype](buffer), shape, dtype);
}

/** Return a name of the kit, such as `diagonal_gaussian`, as the package writes it. */
function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

/** Return a transform with the names that the package writes, instead of those of the protos. */
export function camelKeys(transform: object): object {
  return Object.fromEntries(
    Object.entries(transform).map(([name, value]: [string, unknown]): [string, unknown] => {
      if (name === "data_type") {
        return ["dtype", String(value).replace("DATA_TYPE_", "").toLowerCase()];
      }
      const isNested = typeof value === "object" && value !== null && !Array.isArray(value);
      return [camel(name), isNested ? camelKeys(value) : value];
    }),
  );
}
