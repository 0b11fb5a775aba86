package io.github.rollserve;

import io.grpc.Status;
import java.net.ConnectException;
import java.net.UnknownHostException;
import java.security.cert.CertPathBuilderException;
import java.security.cert.CertPathValidatorException;
import java.security.cert.CertificateException;
import java.security.cert.CertificateExpiredException;
import java.security.cert.CertificateNotYetValidException;
import javax.net.ssl.SSLException;

/** Reasons why TLS fails with every attempt, told by the causes of an error, as gRPC has one status for all of them. */
final class TlsFailures {
    private TlsFailures() {}

    /** Returns the exception for a connection whose TLS fails; null for other errors. */
    static RollserveException exception(Throwable error) {
        SSLException failure = find(error, SSLException.class);
        if (failure == null) {
            return null;
        }
        String text = deepest(failure).getMessage();
        if (isUntrusted(failure)) {
            return exception("ca", "an authority that vouches for the server's certificate", text, error);
        }
        if (find(failure, CertificateException.class) != null) {
            return exception("target", "a name or address in the server's certificate", text, error);
        }
        if (failure.getClass().getSimpleName().equals("NotSslRecordException")) { // netty's, which may be shaded
            return exception("target", "a server that encrypts connections (TLS)", "one that does not", error);
        }
        return null;
    }

    private static boolean isUntrusted(Throwable failure) {
        return find(failure, CertPathBuilderException.class) != null
            || find(failure, CertPathValidatorException.class) != null
            || find(failure, CertificateExpiredException.class) != null
            || find(failure, CertificateNotYetValidException.class) != null;
    }

    /** Says whether no connection could be made at all. */
    static boolean isUnreachable(Throwable error) {
        return find(error, ConnectException.class) != null || find(error, UnknownHostException.class) != null;
    }

    private static RollserveException exception(String field, String expected, String got, Throwable cause) {
        String message = Errors.mismatch(field, expected, got);
        return Errors.classify(
            new Details(message, Status.Code.UNAUTHENTICATED, Reason.TLS_FAILED.name(), field, "", cause));
    }

    private static <T extends Throwable> T find(Throwable error, Class<T> type) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (type.isInstance(cause)) {
                return type.cast(cause);
            }
        }
        return null;
    }

    private static Throwable deepest(Throwable error) {
        return error.getCause() == null ? error : deepest(error.getCause());
    }
}
