import io.github.rollserve.EnvUpdated;
import io.github.rollserve.EpisodeBatch;
import io.github.rollserve.Evaluation;
import io.github.rollserve.MlpAgent;
import io.github.rollserve.RollserveException;
import io.github.rollserve.Sampler;
import java.nio.DoubleBuffer;
import java.util.Arrays;
import java.util.Locale;
import java.util.Random;

/**
 * Learns CartPole-v1 with PPO (https://arxiv.org/abs/1707.06347) through a server of Rollserve:
 * {@code CartPole HOST:PORT}.
 *
 * <p>The exit status is 0 if the mean return of 100 new episodes reaches 475, 1 if it does not, and 3 if the server
 * cannot be used.
 */
final class CartPole {
    private static final String ENV = "CartPole-v1";
    private static final double SOLVED_RETURN = 475;
    private static final double TRAINED_RETURN = 490;
    private static final int NUM_EVALUATED = 100;
    private static final int STEPS_PER_ITERATION = 6144;
    private static final int MAX_ITERATIONS = 150;
    private static final double DISCOUNT = 0.99;
    private static final double GAE_LAMBDA = 0.95;
    private static final double CLIP = 0.2;
    private static final double ENTROPY_BONUS = 0.01;
    private static final double LEARNING_RATE = 2e-3;
    private static final int NUM_EPOCHS = 6;
    private static final int MINIBATCH_SIZE = 512;

    private final Random random = new Random(0);
    private final Network policy;
    private final Network value;

    private CartPole(MlpAgent agent, int numInputs) {
        policy = new Network(agent.parameters());
        value = new Network(random, numInputs, 32, 32, 1);
    }

    /** The outcome of a training: the mean return of the last evaluation, and all sampled steps. */
    private record Outcome(double meanReturn, long numSteps) {}

    public static void main(String[] arguments) {
        Locale.setDefault(Locale.ROOT);
        long began = System.nanoTime();
        Outcome outcome;
        try (Sampler sampler = Sampler.connect(arguments.length > 0 ? arguments[0] : "127.0.0.1:50051")) {
            outcome = train(sampler);
        } catch (RollserveException error) {
            System.err.println("demo: " + error.getMessage());
            System.exit(3);
            return;
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        System.out.printf("demo: %s mean return %.1f over %d episodes, %d steps in %.1f s, %.0f steps/s%n",
            ENV, outcome.meanReturn(), NUM_EVALUATED, outcome.numSteps(), seconds, outcome.numSteps() / seconds);
        System.exit(outcome.meanReturn() >= SOLVED_RETURN ? 0 : 1);
    }

    private static Outcome train(Sampler sampler) {
        EnvUpdated env = sampler.updateEnv(ENV);
        MlpAgent agent = MlpAgent.initial(env.observationSpace(), env.actionSpace(), new int[] {32, 32}, 0);
        CartPole learner = new CartPole(agent, env.observationSpace().flatSize());
        double meanReturn = 0;
        long numSteps = 0;

        // The first update sends the whole agent: its network, its head and its parameters.
        sampler.updateAgent(agent);
        for (int iteration = 1; iteration <= MAX_ITERATIONS; iteration++) {
            // Whole episodes of the current policy, with at least that many steps in all.
            EpisodeBatch batch = sampler.obtainSamples(STEPS_PER_ITERATION);
            numSteps += batch.numSteps();
            double sampled = Arrays.stream(batch.returns()).average().orElseThrow();
            System.out.printf("iteration %3d: mean return %5.1f, %d steps%n", iteration, sampled, numSteps);
            if (sampled >= TRAINED_RETURN) {
                Evaluation evaluation = sampler.evaluate(NUM_EVALUATED);
                numSteps += Arrays.stream(evaluation.lengths()).sum();
                meanReturn = evaluation.returnSummary().mean();
                if (meanReturn >= SOLVED_RETURN) {
                    break;
                }
            }
            learner.learn(batch, LEARNING_RATE * (1 - iteration / (MAX_ITERATIONS + 1.0)));
            // Later updates send the parameters alone.
            sampler.updateAgent(learner.policy.parameters());
        }
        return new Outcome(meanReturn, numSteps);
    }

    /** Makes some epochs over a batch of whole episodes, sampled with the current policy. */
    private void learn(EpisodeBatch batch, double rate) {
        float[][] observations = rows(Network.floats(batch.observations().plain()), batch.numSteps());
        float[][] last = rows(Network.floats(batch.lastObservations().plain()), batch.numSegments());
        long[] actions = new long[batch.numSteps()];
        batch.actions().plain().longs().get(actions);
        float[] logProbs = Network.floats(batch.agentInfos().get("log_prob"));
        float[] advantages = new float[batch.numSteps()];
        float[] targets = new float[batch.numSteps()];
        estimate(batch, observations, last, advantages, targets);
        int[] order = new int[batch.numSteps()];
        Arrays.setAll(order, step -> step);
        for (int epoch = 0; epoch < NUM_EPOCHS; epoch++) {
            shuffle(order);
            for (int begin = 0; begin < order.length;) {
                int left = order.length - begin;
                int count = left < 2 * MINIBATCH_SIZE ? left : MINIBATCH_SIZE;
                for (int step : Arrays.copyOfRange(order, begin, begin + count)) {
                    float[] logits = policy.forward(observations[step]);
                    policy.backward(gradient(logits, (int) actions[step], advantages[step], logProbs[step]));
                    value.backward(value.forward(observations[step])[0] - targets[step]);
                }
                policy.improve(rate, count);
                value.improve(rate, count);
                begin += count;
            }
        }
    }

    /** Computes normalized generalized advantage estimates, and the targets of the values, of each step. */
    private void estimate(
        EpisodeBatch batch, float[][] observations, float[][] last, float[] advantages, float[] targets) {
        DoubleBuffer rewards = batch.rewards().doubles();
        for (int segment = 0; segment < batch.numSegments(); segment++) {
            // Behind a limit, the value of the last observation counts.
            double nextValue = batch.terminated()[segment] ? 0 : value.forward(last[segment])[0];
            double following = 0;
            for (int step = batch.firstRow(segment + 1) - 1; step >= batch.firstRow(segment); step--) {
                double present = value.forward(observations[step])[0];
                double error = rewards.get(step) + DISCOUNT * nextValue - present;
                following = error + DISCOUNT * GAE_LAMBDA * following;
                advantages[step] = (float) following;
                targets[step] = (float) (following + present);
                nextValue = present;
            }
        }
        double mean = 0;
        double squares = 0;
        for (float advantage : advantages) {
            mean += (double) advantage / advantages.length;
            squares += (double) advantage * advantage / advantages.length;
        }
        double deviation = Math.sqrt(squares - mean * mean) + 1e-8;
        for (int step = 0; step < advantages.length; step++) {
            advantages[step] = (float) ((advantages[step] - mean) / deviation);
        }
    }

    /** Returns the gradient of the loss by the logits of one step. */
    private static float[] gradient(float[] logits, int action, float advantage, float oldLogProb) {
        double[] probs = new double[logits.length];
        Arrays.setAll(probs, i -> Math.exp(logits[i] - logits[action]));
        double total = Arrays.stream(probs).sum();
        Arrays.setAll(probs, i -> probs[i] / total);
        double entropy = -Arrays.stream(probs).map(prob -> prob * Math.log(prob)).sum();
        double ratio = Math.exp(Math.log(probs[action]) - oldLogProb);
        // The objective min(r A, clip(r) A) has no gradient where the clipped term is the smaller one.
        boolean isClipped = advantage > 0 ? ratio >= 1 + CLIP : ratio <= 1 - CLIP;
        double weight = isClipped ? 0 : ratio * advantage;
        float[] gradient = new float[logits.length];
        for (int i = 0; i < gradient.length; i++) {
            double policyPart = weight * (probs[i] - (i == action ? 1 : 0));
            gradient[i] = (float) (policyPart + ENTROPY_BONUS * probs[i] * (Math.log(probs[i]) + entropy));
        }
        return gradient;
    }

    private static float[][] rows(float[] values, int count) {
        int size = values.length / count;
        float[][] rows = new float[count][];
        Arrays.setAll(rows, row -> Arrays.copyOfRange(values, row * size, (row + 1) * size));
        return rows;
    }

    private void shuffle(int[] order) {
        for (int i = order.length - 1; i > 0; i--) {
            int j = random.nextInt(i + 1);
            int swapped = order[i];
            order[i] = order[j];
            order[j] = swapped;
        }
    }
}
