package io.github.rollserve;

/** Bounds of Student's t distribution. */
final class StudentsT {
    private static final double CONFIDENCE = 0.95;
    private static final double NORMAL_BOUND = 1.959963984540054; // of the normal distribution, at this confidence
    /** The degrees of freedom from which on an expansion agrees with the sum to 1e-12. */
    private static final int MANY_DEGREES = 1000;
    private static final int NUM_HALVINGS = 60;

    private StudentsT() {}

    /**
     * Returns the bound that the absolute value of Student's t does not exceed with probability 0.95.
     *
     * @param degrees the degrees of freedom, at least 1
     */
    static double bound(int degrees) {
        if (degrees > MANY_DEGREES) {
            return boundOfMany(degrees);
        }
        double low = 0;
        double high = Math.PI / 2;
        for (int i = 0; i < NUM_HALVINGS; i++) {
            double angle = (low + high) / 2;
            if (probability(angle, degrees) < CONFIDENCE) {
                low = angle;
            } else {
                high = angle;
            }
        }
        return Math.sqrt(degrees) * Math.tan(low);
    }

    /**
     * Returns the probability that the absolute value of t / sqrt(degrees) is at most the tangent of an angle: a finite
     * sum (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4).
     */
    private static double probability(double angle, int degrees) {
        boolean isOdd = degrees % 2 == 1;
        double square = Math.cos(angle) * Math.cos(angle);
        double term = isOdd ? Math.cos(angle) : 1;
        double sum = 0;
        for (int i = 1; i <= degrees / 2; i++) { // the first factors are 2/3, 4/5, … or 1/2, 3/4, …
            sum += term;
            term *= square * (isOdd ? 2.0 * i / (2 * i + 1) : (2.0 * i - 1) / (2 * i));
        }
        double total = Math.sin(angle) * sum;
        return isOdd ? 2 / Math.PI * (angle + total) : total;
    }

    /** Returns the bound by an expansion in powers of 1 / degrees (Abramowitz and Stegun, 26.7.5). */
    private static double boundOfMany(int degrees) {
        double z = NORMAL_BOUND;
        double z2 = z * z;
        double first = z * (z2 + 1) / 4;
        double second = z * ((5 * z2 + 16) * z2 + 3) / 96;
        double third = z * (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
        return z + first / degrees + second / Math.pow(degrees, 2) + third / Math.pow(degrees, 3);
    }
}
