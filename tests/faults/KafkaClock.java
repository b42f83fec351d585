import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.nio.charset.StandardCharsets;
import java.security.ProtectionDomain;
import java.util.Arrays;

/**
 * Loaded into a running Kafka node, sets its wall clock apart by the milliseconds of its argument, each time that it is loaded.
 *
 * Kafka reads clocks through its class SystemTime. There the name of the class java.lang.System, a constant of the class file,
 * is replaced by that of this class, which has the same two methods.
 */
public final class KafkaClock {
    private static final String READER = "org/apache/kafka/common/utils/SystemTime";
    private static final byte[] FROM = "java/lang/System".getBytes(StandardCharsets.UTF_8);
    private static final byte[] TO = "KafkaClock".getBytes(StandardCharsets.UTF_8);
    private static final int UTF8 = 1;
    private static volatile long offsetMs;

    public static long currentTimeMillis() {
        return System.currentTimeMillis() + offsetMs;
    }

    public static long nanoTime() {
        return System.nanoTime();
    }

    public static void agentmain(String argument, Instrumentation tools) throws Exception {
        offsetMs = Long.parseLong(argument);
        if (System.setProperty("faults.clock", argument) != null) {
            return;
        }
        tools.addTransformer(new ClassFileTransformer() {
            @Override
            public byte[] transform(ClassLoader l, String name, Class<?> c, ProtectionDomain d, byte[] found) {
                return READER.equals(name) ? replaceConstant(found) : null;
            }
        }, true);
        tools.retransformClasses(Class.forName(READER.replace('/', '.')));
    }

    private static byte[] replaceConstant(byte[] found) {
        for (int at = 0; at + 3 + FROM.length <= found.length; at++) {
            boolean begins = found[at] == UTF8 && found[at + 1] == 0 && found[at + 2] == FROM.length;
            if (begins && Arrays.equals(Arrays.copyOfRange(found, at + 3, at + 3 + FROM.length), FROM)) {
                byte[] made = new byte[found.length - FROM.length + TO.length];
                System.arraycopy(found, 0, made, 0, at + 2);
                made[at + 2] = (byte) TO.length;
                System.arraycopy(TO, 0, made, at + 3, TO.length);
                int rest = at + 3 + FROM.length;
                System.arraycopy(found, rest, made, at + 3 + TO.length, found.length - rest);
                return made;
            }
        }
        throw new IllegalStateException("this Kafka reads its clock in another way");
    }
}
