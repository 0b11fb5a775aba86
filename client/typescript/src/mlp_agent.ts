/**
 * Multilayer perceptrons as callers specify them; the server evaluates them.
 *
 * @packageDocumentation
 */

import { create } from "@bufbuild/protobuf";

import { Agent, parametersByName, parametersToMessage, type Parameters, maskOf, type MaskSettings } from "./agents.js";
import { InvalidArgumentError } from "./errors.js";
import { Activation as ActivationNumber, AgentSchema, MlpAgentSchema } from "./generated/rollserve/v1/agent_pb.js";
import type { Agent as AgentMessage, MlpAgent as MlpMessage } from "./generated/rollserve/v1/agent_pb.js";
import { flatSize, type Space } from "./spaces.js";
import { sizeOf, Tensor } from "./tensor.js";

/** The activation of hidden layers. `gelu` is exact, as in PyTorch; `geluTanh` is JAX's approximation. */
export type Activation = "tanh" | "relu" | "elu" | "gelu" | "geluTanh" | "silu";

/**
 * The meaning of an MLP's output. For a Discrete action space the logits (`categorical`) or Q-values (`epsilonGreedy`,
 * `boltzmann`). For a Box the means (`diagonalGaussian`), or the means before tanh (`squashedGaussian`, which stays
 * within the bounds). For a MultiDiscrete space the logits of all elements one after the other (`multiCategorical`).
 * For a MultiBinary space the logits of ones (`bernoulli`).
 */
export type MlpHead =
  | "categorical"
  | "diagonalGaussian"
  | "squashedGaussian"
  | "multiCategorical"
  | "bernoulli"
  | "epsilonGreedy"
  | "boltzmann";

/** A recurrent core before the last layer. */
export type Core = "gru" | "lstm";

/** Settings of an MLP. */
export interface MlpSettings extends MaskSettings {
  /** The constant that the normalization of observations adds to the variance; 1e-8 by default. */
  readonly normalizationEpsilon?: number | undefined;
  /** The bound of normalized observations; 10 by default. */
  readonly normalizationClip?: number | undefined;
  /** The activation of the hidden layers; `tanh` by default. */
  readonly activation?: Activation | undefined;
  /** The constant that layer norm adds to the variance; 1e-5 by default. */
  readonly layerNormEpsilon?: number | undefined;
  /** The lower bound that log_std of a Gaussian head is clipped to. */
  readonly minLogStd?: number | undefined;
  /** The upper bound that log_std of a Gaussian head is clipped to. */
  readonly maxLogStd?: number | undefined;
  /** The probability of random actions of the head `epsilonGreedy`, from 0 to 1; 0 by default. */
  readonly epsilon?: number | undefined;
  /** The divisor of the Q-values of the head `boltzmann`; 1 by default. */
  readonly temperature?: number | undefined;
}

/** Options of {@link MlpAgent.initial}. */
export interface InitialMlp {
  /** The size of each hidden layer; (64, 64) by default. */
  readonly hiddenSizes?: readonly number[] | undefined;
  /** The activation of the hidden layers; `tanh` by default. */
  readonly activation?: Activation | undefined;
  /** The source of random numbers from 0 up to 1; `Math.random` by default. */
  readonly random?: (() => number) | undefined;
  /** The meaning of the output; by default the first head that fits the action space. */
  readonly head?: MlpHead | undefined;
}

const ACTIVATIONS: Readonly<Record<Activation, ActivationNumber>> = {
  tanh: ActivationNumber.TANH,
  relu: ActivationNumber.RELU,
  elu: ActivationNumber.ELU,
  gelu: ActivationNumber.GELU,
  geluTanh: ActivationNumber.GELU_TANH,
  silu: ActivationNumber.SILU,
};
const GAUSSIANS: readonly MlpHead[] = ["diagonalGaussian", "squashedGaussian"];
const GATES: Readonly<Record<Core, number>> = { gru: 3, lstm: 4 };
const SETTING_HEADS: Readonly<Record<"minLogStd" | "maxLogStd" | "epsilon" | "temperature", readonly MlpHead[]>> = {
  minLogStd: GAUSSIANS,
  maxLogStd: GAUSSIANS,
  epsilon: ["epsilonGreedy"],
  temperature: ["boltzmann"],
};

/**
 * A multilayer perceptron with a distribution over actions at its end, evaluated in float32.
 *
 * Layer i is `activation(norm(weight @ input + bias))`; the last layer has no norm and no activation. The input is the
 * observation after `gymnasium.spaces.flatten`. The names of the parameters, float32 but for those of the
 * normalization, say which layers and parts there are:
 *
 * - `i/weight` of shape (outputs, inputs) and `i/bias` of shape (outputs) for each layer i, from 0;
 * - with layer norm, `i/norm/weight` and `i/norm/bias` of shape (outputs) for each hidden layer;
 * - for a value head on the last hidden layer, `value/weight` of shape (1, inputs) and `value/bias` of shape (1);
 *   for a separate value network, `value/i/weight` and so on;
 * - for a Gaussian head, `log_std` of shape (outputs of the last layer). Without it, log_std is predicted: the last
 *   layer has twice as many outputs, all means followed by all log_std;
 * - for a recurrent core of H units before the last layer, `core/weight_ih` of shape (G * H, inputs), `core/weight_hh`
 *   of shape (G * H, H), `core/bias_ih` and `core/bias_hh` of shape (G * H), where G is 3 for a GRU and 4 for an LSTM.
 *   The last layer and a value head then have H inputs;
 * - for normalized observations, `observation/mean` and `observation/variance`, float64 of shape (inputs).
 */
export class MlpAgent extends Agent {
  /** The parameters by name. */
  readonly parameters: ReadonlyMap<string, Tensor>;
  /** The meaning of the output. */
  readonly head: MlpHead;
  /** The other settings. */
  readonly settings: MlpSettings;

  /**
   * Make an agent that refers to the parameters.
   *
   * @throws InvalidArgumentError - A setting that the head does not have.
   */
  constructor(parameters: Parameters, head: MlpHead, settings: MlpSettings = {}) {
    super();
    for (const [name, heads] of Object.entries(SETTING_HEADS)) {
      const value = settings[name as keyof typeof SETTING_HEADS];
      if (value !== undefined && !heads.includes(head)) {
        throw InvalidArgumentError.of(name, `undefined for the head ${head}`, value);
      }
    }
    this.parameters = parametersByName(parameters);
    this.head = head;
    this.settings = settings;
  }

  /**
   * Return an untrained agent for the spaces: a start for training, or for a first try.
   *
   * Weights are normal with variance 1 / inputs. The last layer's standard deviation is a hundredth of that, so that
   * the first policy is close to uniform. Biases and `log_std` are 0.
   *
   * @throws InvalidArgumentError - An action space that no head, or not this head, is for.
   */
  static initial(observationSpace: Space, actionSpace: Space, options: InitialMlp = {}): MlpAgent {
    const head = headFor(actionSpace, options.head);
    const random = options.random ?? Math.random;
    const outputs = flatSize(actionSpace);
    const sizes = [flatSize(observationSpace), ...(options.hiddenSizes ?? [64, 64]), outputs];
    const parameters = new Map<string, Tensor>();
    sizes.slice(1).forEach((size, layer) => {
      const inputs = sizes[layer] ?? 0;
      const scale = (layer === sizes.length - 2 ? 0.01 : 1) / Math.sqrt(inputs);
      const weight = Float32Array.from({ length: size * inputs }, () => scale * normal(random));
      parameters.set(`${String(layer)}/weight`, Tensor.of(weight, [size, inputs]));
      parameters.set(`${String(layer)}/bias`, Tensor.of(new Float32Array(size)));
    });
    if (GAUSSIANS.includes(head)) {
      parameters.set("log_std", Tensor.of(new Float32Array(outputs)));
    }
    return new MlpAgent(parameters, head, { activation: options.activation ?? "tanh" });
  }

  /**
   * Return the agent as a message.
   *
   * @throws InvalidArgumentError - No layers, or a weight that is not a matrix.
   *
   * @internal
   */
  override toMessage(): AgentMessage {
    const { parameters } = this;
    const core = coreOf(parameters);
    const value = valueOf(parameters);
    const hasNorm = [...parameters.keys()].some((name) => name.endsWith("/norm/weight"));
    const mlp = create(MlpAgentSchema, {
      layerSizes: layerSizesOf(parameters, core),
      activation: ACTIVATIONS[this.settings.activation ?? "tanh"],
      head: { case: this.head, value: this.#headSettings(parameters.has("log_std")) } as NonNullable<
        MlpMessage["head"]
      >,
      parameters: parametersToMessage(parameters),
      ...maskOf(this.settings),
    });
    if (parameters.has("observation/mean")) {
      const { normalizationEpsilon: epsilon = 1e-8, normalizationClip: clip = 10 } = this.settings;
      mlp.normalization = { $typeName: "rollserve.v1.ObservationNormalization", epsilon, clip };
    }
    if (hasNorm) {
      mlp.layerNorm = { $typeName: "rollserve.v1.LayerNorm", epsilon: this.settings.layerNormEpsilon ?? 1e-5 };
    }
    if (value !== undefined) {
      mlp.value = value;
    }
    if (core !== undefined) {
      const size = matrixShape(parameters, "core/weight_hh")[1];
      mlp.core =
        core === "gru"
          ? { case: core, value: { $typeName: "rollserve.v1.GruCore", size } }
          : { case: core, value: { $typeName: "rollserve.v1.LstmCore", size } };
    }
    return create(AgentSchema, { kind: { case: "mlp", value: mlp } });
  }

  #headSettings(hasLogStd: boolean): object {
    const { minLogStd, maxLogStd, epsilon = 0, temperature } = this.settings;
    if (GAUSSIANS.includes(this.head)) {
      return { predictedLogStd: !hasLogStd, minLogStd, maxLogStd };
    }
    return this.head === "epsilonGreedy" ? { epsilon } : { temperature };
  }
}

type Named = ReadonlyMap<string, Tensor>;

function layerSizesOf(parameters: Named, core: Core | undefined): number[] {
  const shapes = weightShapes(parameters, "");
  const [first] = shapes;
  if (first === undefined) {
    throw missing("0/weight");
  }
  const isBehindCore = shapes.length === 1 && core !== undefined;
  const inputs = isBehindCore ? matrixShape(parameters, "core/weight_ih")[1] : first[1];
  return [inputs, ...shapes.map(([outputs]) => outputs)];
}

function coreOf(parameters: Named): Core | undefined {
  if (![...parameters.keys()].some((name) => name.startsWith("core/"))) {
    return undefined;
  }
  const [outputs, size] = matrixShape(parameters, "core/weight_hh");
  const found = (Object.keys(GATES) as Core[]).find((core) => outputs === GATES[core] * size);
  if (found === undefined) {
    const expected = "shape (3 H, H) of a GRU or (4 H, H) of an LSTM";
    throw InvalidArgumentError.of("parameters['core/weight_hh']", expected, `(${String(outputs)}, ${String(size)})`);
  }
  return found;
}

function valueOf(parameters: Named): MlpMessage["value"] | undefined {
  const shapes = weightShapes(parameters, "value/");
  if (shapes.length > 0) {
    const hiddenSizes = shapes.slice(0, -1).map(([outputs]) => outputs);
    return { case: "separateValue", value: { $typeName: "rollserve.v1.SeparateValue", hiddenSizes } };
  }
  if (parameters.has("value/weight")) {
    return { case: "sharedValue", value: { $typeName: "rollserve.v1.SharedValue" } };
  }
  return undefined;
}

/** Return the shapes of consecutive layers' weights. */
function weightShapes(parameters: Named, prefix: string): [number, number][] {
  const shapes: [number, number][] = [];
  for (;;) {
    const name = `${prefix}${String(shapes.length)}/weight`;
    if (!parameters.has(name)) {
      return shapes;
    }
    shapes.push(matrixShape(parameters, name));
  }
}

function matrixShape(parameters: Named, name: string): [number, number] {
  const tensor = parameters.get(name);
  if (tensor === undefined) {
    throw missing(name);
  }
  const [outputs, inputs] = tensor.shape;
  if (tensor.shape.length !== 2 || outputs === undefined || inputs === undefined) {
    throw InvalidArgumentError.of(`parameters['${name}']`, "two dimensions", `shape [${tensor.shape.join(", ")}]`);
  }
  return [outputs, inputs];
}

function missing(name: string): InvalidArgumentError {
  return InvalidArgumentError.of("parameters", `a parameter '${name}'`, "none of that name");
}

function headFor(space: Space, requested: MlpHead | undefined): MlpHead {
  const heads = headsFor(space);
  const head = requested ?? heads[0];
  if (head === undefined) {
    throw InvalidArgumentError.of("actionSpace", "Discrete, MultiDiscrete, MultiBinary or a Box of floats", space.kind);
  }
  if (!heads.includes(head)) {
    throw InvalidArgumentError.of("head", heads.join(" or "), head);
  }
  return head;
}

function headsFor(space: Space): readonly MlpHead[] {
  switch (space.kind) {
    case "discrete":
      return ["categorical", "epsilonGreedy", "boltzmann"];
    case "box":
      return space.dtype.startsWith("float") && sizeOf(space.shape) > 0 ? GAUSSIANS : [];
    case "multiDiscrete":
      return ["multiCategorical"];
    case "multiBinary":
      return ["bernoulli"];
    default:
      return [];
  }
}

/** Return a standard normal number by the method of Box and Muller. */
function normal(random: () => number): number {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}
