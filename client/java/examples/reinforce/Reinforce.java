import io.github.rollserve.Columns;
import io.github.rollserve.DataType;
import io.github.rollserve.DriveOptions;
import io.github.rollserve.DrivenStep;
import io.github.rollserve.EpisodeBatch;
import io.github.rollserve.RollserveException;
import io.github.rollserve.Sampler;
import io.github.rollserve.Session;
import io.github.rollserve.StepOptions;
import io.github.rollserve.Tensor;
import java.nio.FloatBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;

/**
 * Learns CartPole-v1 with REINFORCE from outside: {@code Reinforce HOST:PORT}. The server has the environments and
 * records the steps; the policy, which is linear, acts here, in a session.
 *
 * <p>The exit status is 0 if the mean return of 50 episodes reaches 195, 1 if it does not, and 3 if the server cannot
 * be used.
 */
final class Reinforce {
    private static final String ENV = "CartPole-v1";
    private static final double SOLVED_RETURN = 195;
    private static final int NUM_AVERAGED = 50;
    private static final int FRAGMENT_LENGTH = 128;
    private static final int MAX_ITERATIONS = 100;
    private static final double DISCOUNT = 0.98;
    private static final double LEARNING_RATE = 30;
    private static final int NUM_FEATURES = 4;

    private final Session session;
    private final Random random = new Random(0);
    private final double[] weights = new double[NUM_FEATURES]; // of the logit of a push to the right

    private Reinforce(Session session) {
        this.session = session;
    }

    public static void main(String[] arguments) {
        Locale.setDefault(Locale.ROOT);
        long began = System.nanoTime();
        double meanReturn;
        try (Sampler sampler = Sampler.connect(arguments.length > 0 ? arguments[0] : "127.0.0.1:50051")) {
            sampler.updateEnv(ENV);
            DriveOptions options = new DriveOptions()
                .withSeed(0)
                .withFragmentLength(FRAGMENT_LENGTH)
                .withAgentInfo("probability", DataType.FLOAT64);
            try (Session session = sampler.drive(options)) {
                meanReturn = new Reinforce(session).train();
                long numSteps = session.end().numSteps();
                System.out.printf("reinforce: %s mean return %.1f over the last %d episodes, %d steps in %.1f s%n",
                    ENV, meanReturn, NUM_AVERAGED, numSteps, (System.nanoTime() - began) / 1e9);
            }
        } catch (RollserveException error) {
            System.err.println("reinforce: " + error.getMessage());
            System.exit(3);
            return;
        }
        System.exit(meanReturn >= SOLVED_RETURN ? 0 : 1);
    }

    /** Returns the mean return of the last episodes. */
    private double train() {
        List<Double> returns = new ArrayList<>();
        double meanReturn = 0;
        for (int iteration = 1; iteration <= MAX_ITERATIONS && meanReturn < SOLVED_RETURN; iteration++) {
            act();
            EpisodeBatch batch = session.batch(); // what the server has recorded of it
            learn(batch);
            double[] sums = batch.episodeReturns();
            for (int segment = 0; segment < sums.length; segment++) {
                if (batch.terminated()[segment] || batch.truncated()[segment]) {
                    returns.add(sums[segment]);
                }
            }
            if (returns.size() >= NUM_AVERAGED) {
                meanReturn = returns.subList(returns.size() - NUM_AVERAGED, returns.size()).stream()
                    .mapToDouble(Double::doubleValue).average().orElseThrow();
            }
            System.out.printf("iteration %3d: mean return %5.1f%n", iteration, meanReturn);
        }
        return meanReturn;
    }

    /** Makes the steps of a fragment. */
    private void act() {
        DrivenStep step = session.observe();
        for (int i = 0; i < FRAGMENT_LENGTH; i++) {
            FloatBuffer observations = step.observations().plain().floats();
            long[] actions = new long[session.numRows()];
            double[] probabilities = new double[actions.length]; // of 1
            for (int row = 0; row < actions.length; row++) {
                double logit = 0;
                for (double weight : weights) {
                    logit += weight * observations.get();
                }
                probabilities[row] = 1 / (1 + Math.exp(-logit));
                actions[row] = random.nextDouble() < probabilities[row] ? 1 : 0;
            }
            Columns infos = new Columns(Map.of("probability", Tensor.of(probabilities)));
            step = session.step(Columns.plain(Tensor.of(actions)), new StepOptions().withAgentInfos(infos));
        }
    }

    /** Improves the policy by the policy gradient of a batch. */
    private void learn(EpisodeBatch batch) {
        FloatBuffer observations = batch.observations().plain().floats();
        double[] actions = batch.actions().plain().toDoubles();
        double[] probabilities = batch.agentInfos().get("probability").toDoubles();
        double[] returns = discountedReturns(batch);
        double mean = Arrays.stream(returns).average().orElseThrow();
        double variance = Arrays.stream(returns).map(each -> (each - mean) * (each - mean)).average().orElseThrow();
        double rate = LEARNING_RATE / returns.length / (Math.sqrt(variance) + 1e-8);
        for (int step = 0; step < returns.length; step++) {
            for (int i = 0; i < weights.length; i++) {
                double gradient = (actions[step] - probabilities[step]) * observations.get();
                weights[i] += rate * (returns[step] - mean) * gradient;
            }
        }
    }

    /**
     * Returns the discounted sum of the rewards from each step on. An episode that has not terminated counts as one
     * that goes on for ever.
     */
    private static double[] discountedReturns(EpisodeBatch batch) {
        double[] returns = batch.rewards().toDoubles();
        int end = 0;
        for (int segment = 0; segment < batch.numSegments(); segment++) {
            end += batch.lengths()[segment];
            double following = batch.terminated()[segment] ? 0 : 1 / (1 - DISCOUNT);
            for (int step = end - 1; step >= end - batch.lengths()[segment]; step--) {
                following = returns[step] + DISCOUNT * following;
                returns[step] = following;
            }
        }
        return returns;
    }
}
