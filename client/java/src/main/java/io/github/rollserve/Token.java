package io.github.rollserve;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Optional;
import java.util.regex.Pattern;

/** The bearer token of a connection, if it has one. Errors do not show it. */
final class Token {
    private static final Pattern FORM = Pattern.compile("[!-~]+");
    private static final Pattern LOOPBACK = Pattern.compile("localhost|127(\\.\\d{1,3}){3}|\\[?(::1|(0*:)+0*1)]?");

    private final String text;
    private final Path file;

    private Token(String text, Path file) {
        this.text = text;
        this.file = file;
    }

    static Token of(String target, ConnectionOptions options) {
        if (options.token() != null && options.tokenFile() != null) {
            throw Errors.invalid("token", "either token or tokenFile", "both");
        }
        Token token = new Token(options.token(), options.tokenFile());
        boolean isGiven = options.token() != null || options.tokenFile() != null;
        if (isGiven && !options.isEncrypted() && !isLocal(target)) {
            String expected =
                "an encrypted connection, because others in the network could read the token (give tls or ca)";
            throw Errors.invalid("token", expected, "none to " + target);
        }
        token.read();
        return token;
    }

    /** Returns the token for a call. */
    Optional<String> read() {
        if (text == null && file == null) {
            return Optional.empty();
        }
        String field = file == null ? "token" : "tokenFile";
        String read = text;
        if (file != null) {
            try {
                read = Files.readString(file).strip();
            } catch (IOException error) {
                throw Errors.invalid(field, "a file with a token", error.toString());
            }
        }
        if (!FORM.matcher(read).matches()) {
            String expected = "a token: printable characters of ASCII without blanks";
            throw Errors.invalid(field, expected, "another text");
        }
        return Optional.of(read);
    }

    /** Says whether a target is on this machine, so that nobody in the network reads what is sent there. */
    static boolean isLocal(String target) {
        String host = address(target).getHost();
        return target.startsWith("unix:")
            || (host != null && LOOPBACK.matcher(host.toLowerCase(Locale.ROOT)).matches());
    }

    /** Returns host and port of a target, as a URI of HTTPS; one without a host if the target has another form. */
    static URI address(String target) {
        String address = target.startsWith("dns:///") ? target.substring("dns:///".length()) : target;
        try {
            return URI.create("https://" + address);
        } catch (IllegalArgumentException malformed) {
            return URI.create("https:none");
        }
    }
}
