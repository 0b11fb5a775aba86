/**
 * Client of Rollserve: remote experience generation for reinforcement learning.
 *
 * `connect` returns a `Sampler`, which sends agents and environments to a server and receives episodes as typed arrays.
 *
 * @packageDocumentation
 */

export type { Account, EpisodeFailure, WorkerAccount } from "./account.js";
export { AgentReturns } from "./agent_returns.js";
export type { PolicyVersion } from "./agent_returns.js";
export { Agent, AgentChange, ConstantAgent, OnnxAgent, Policies, PythonAgent, RandomAgent } from "./agents.js";
export type { ActionMask, AgentUpdate, MaskSettings, OnnxHead, OnnxNames, Parameters, PolicyUpdate } from "./agents.js";
export type { BatchFields } from "./batch_columns.js";
export type { Compression } from "./compression.js";
export type { ConnectionOptions, TlsOptions } from "./connection.js";
export type { Actions, RowValues } from "./driven_actions.js";
export type { DrivenStep } from "./driven_step.js";
export { float16ToFloat32, float32ToFloat16 } from "./dtypes.js";
export type { DType, TypedArray, TypedArrays } from "./dtypes.js";
export type {
  EnvChange,
  EnvSpec,
  EnvUpdate,
  EnvUpdateResult,
  MultiAgentApi,
  Task,
  Vectorization,
  Wrapper,
} from "./environments.js";
export { EpisodeBatch } from "./episode_batch.js";
export {
  AccessError,
  CancelledError,
  DeadlineError,
  InvalidArgumentError,
  LimitError,
  PreconditionError,
  RollserveError,
  ServerError,
  StoppedError,
  UnavailableError,
} from "./errors.js";
export type { ErrorDetails, KnownReason, Reason, StatusCode } from "./errors.js";
export type { Evaluation, Summary } from "./evaluation.js";
export type { Integer } from "./integers.js";
export type { Json, Kwargs } from "./json_arguments.js";
export { MlpAgent } from "./mlp_agent.js";
export type { Activation, Core, InitialMlp, MlpHead, MlpSettings } from "./mlp_agent.js";
export { concatenateMany, MultiAgentBatch, PolicyBatch } from "./multi_agent_batch.js";
export type { AgentSteps, MultiAgentFields, PolicyFields } from "./multi_agent_batch.js";
export { MultiAgentSampler } from "./multi_agent_sampler.js";
export type {
  CallOptions,
  DriveOptions,
  EpisodeOptions,
  EvaluationOptions,
  FragmentOptions,
  SamplingOptions,
} from "./options.js";
export type { PolicyChoice, PolicyMap, PolicyRule } from "./policies.js";
export type { Reproducibility } from "./reproducibility.js";
export { joinParts, SampleStream } from "./sample_stream.js";
export { connect, Sampler } from "./sampler.js";
export type { CallEnvironmentsOptions, ConnectOptions, PerWorker, UpdateAgentOptions } from "./sampler.js";
export { Session } from "./session.js";
export type { SendOptions, StepOptions } from "./session.js";
export { flatSize } from "./spaces.js";
export type { Box, Dict, Discrete, MultiBinary, MultiDiscrete, RowForm, Space, Tuple } from "./spaces.js";
export type { Counters, EnvProfile, SamplerStatus, WorkerHealth, WorkerStatus } from "./status.js";
export { Columns, Tensor } from "./tensor.js";
export type { DTypeOf, Elements } from "./tensor.js";
export type { Transform } from "./transforms.js";
