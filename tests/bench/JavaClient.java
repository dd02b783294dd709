import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * The rival of the benchmark: a broker's own JMS client doing the same work. Run from its source by `java`.
 *
 * <p>It reads commands, so that one virtual machine with its compiled code serves all rounds. The first line
 * is the class of the connection factory, then its properties as name=value, up to an empty line. Then come
 * lines of `mode queue count transaction-size body-bytes sessions`, each answered by a line with the seconds
 * it took.
 */
public final class JavaClient {
  /** Not in the standard, but ActiveMQ and RabbitMQ have it under the same number. */
  private static final int INDIVIDUAL_ACKNOWLEDGE = 4;

  private static final long PATIENCE_SECONDS = 120;

  public static void main(String[] arguments) throws Exception {
    BufferedReader commands =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    ConnectionFactory factory = factory(commands);
    String line;
    while ((line = commands.readLine()) != null) {
      String[] words = line.split(" ");
      int count = Integer.parseInt(words[2]);
      int transactionSize = Integer.parseInt(words[3]);
      int bodyBytes = Integer.parseInt(words[4]);
      int sessions = Integer.parseInt(words[5]);
      try (Connection connection = factory.createConnection()) {
        connection.start();
        double seconds =
            switch (words[0]) {
              case "publish-text", "publish-bytes" -> {
                boolean asText = words[0].endsWith("text");
                yield publish(connection, words[1], count, transactionSize, bodyBytes, asText);
              }
              case "receive" -> receive(connection, words[1], count, transactionSize, sessions);
              case "listen" -> listen(connection, words[1], count, transactionSize, sessions);
              default -> throw new IllegalArgumentException("mode " + words[0]);
            };
        System.out.printf("%.6f%n", seconds);
      }
    }
  }

  private static ConnectionFactory factory(BufferedReader commands) throws Exception {
    Object factory = Class.forName(commands.readLine()).getDeclaredConstructor().newInstance();
    String line;
    while (!(line = commands.readLine()).isEmpty()) {
      String[] pair = line.split("=", 2);
      set(factory, "set" + Character.toUpperCase(pair[0].charAt(0)) + pair[0].substring(1), pair[1]);
    }
    return (ConnectionFactory) factory;
  }

  private static void set(Object factory, String setter, String value) throws Exception {
    for (Method method : factory.getClass().getMethods()) {
      if (method.getName().equals(setter) && method.getParameterCount() == 1) {
        Class<?> type = method.getParameterTypes()[0];
        if (type == String.class) {
          method.invoke(factory, value);
          return;
        } else if (type == int.class) {
          method.invoke(factory, Integer.parseInt(value));
          return;
        } else if (type == boolean.class) {
          method.invoke(factory, Boolean.parseBoolean(value));
          return;
        }
      }
    }
    throw new IllegalArgumentException(factory.getClass().getName() + " has no " + setter);
  }

  private static double publish(
      Connection connection,
      String name,
      int count,
      int transactionSize,
      int bodyBytes,
      boolean asText)
      throws Exception {
    Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
    MessageProducer producer = session.createProducer(session.createQueue(name));
    producer.setDeliveryMode(DeliveryMode.PERSISTENT);
    String text = "x".repeat(bodyBytes);
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    long start = System.nanoTime();
    for (int i = 0; i < count; i++) {
      if (asText) {
        producer.send(session.createTextMessage(text));
      } else {
        BytesMessage message = session.createBytesMessage();
        message.writeBytes(bytes);
        producer.send(message);
      }
      if ((i + 1) % transactionSize == 0) {
        session.commit();
      }
    }
    session.commit();
    return seconds(start);
  }

  /** Reads and settles each message, or, in a transacted session, commits after so many. */
  private static final class Settler {
    private final Session session;
    private final int transactionSize;
    private int settled;

    Settler(Session session, int transactionSize) {
      this.session = session;
      this.transactionSize = transactionSize;
    }

    void settle(Message message) throws JMSException {
      if (message instanceof TextMessage withText && withText.getText().isEmpty()) {
        throw new IllegalStateException("a message came without its text");
      }
      settled++;
      if (transactionSize == 0) {
        message.acknowledge();
      } else if (settled % transactionSize == 0) {
        session.commit();
      }
    }
  }

  private static Session[] sessions(Connection connection, int transactionSize, int sessions)
      throws JMSException {
    Session[] opened = new Session[sessions];
    for (int i = 0; i < sessions; i++) {
      opened[i] =
          transactionSize == 0
              ? connection.createSession(false, INDIVIDUAL_ACKNOWLEDGE)
              : connection.createSession(true, Session.SESSION_TRANSACTED);
    }
    return opened;
  }

  /** Counts what all sessions have settled; done with the last message, or with the first failure. */
  private static final class Finish {
    private final AtomicInteger missing;
    private final CompletableFuture<Void> done = new CompletableFuture<>();

    Finish(int count) {
      missing = new AtomicInteger(count);
    }

    void settle(Settler settler, Message message) throws JMSException {
      settler.settle(message);
      if (missing.decrementAndGet() == 0) {
        done.complete(null);
      }
    }

    void await() throws Exception {
      try {
        done.get(PATIENCE_SECONDS, TimeUnit.SECONDS);
      } catch (TimeoutException late) {
        throw new IllegalStateException(missing.get() + " messages have not come", late);
      }
    }
  }

  private static double receive(
      Connection connection, String name, int count, int transactionSize, int sessions)
      throws Exception {
    Finish finish = new Finish(count);
    Session[] opened = sessions(connection, transactionSize, sessions);
    long start = System.nanoTime();
    for (Session session : opened) {
      Settler settler = new Settler(session, transactionSize);
      MessageConsumer consumer = session.createConsumer(session.createQueue(name));
      Thread thread =
          new Thread(
              () -> {
                try {
                  Message message;
                  while ((message = consumer.receive()) != null) { // until the connection is closed
                    finish.settle(settler, message);
                  }
                } catch (JMSException | RuntimeException failure) {
                  finish.done.completeExceptionally(failure);
                }
              });
      thread.setDaemon(true);
      thread.start();
    }
    finish.await();
    return seconds(start);
  }

  private static double listen(
      Connection connection, String name, int count, int transactionSize, int sessions)
      throws Exception {
    Finish finish = new Finish(count);
    Session[] opened = sessions(connection, transactionSize, sessions);
    long start = System.nanoTime();
    for (Session session : opened) {
      Settler settler = new Settler(session, transactionSize);
      MessageConsumer consumer = session.createConsumer(session.createQueue(name));
      consumer.setMessageListener(
          message -> {
            try {
              finish.settle(settler, message);
            } catch (JMSException | RuntimeException failure) {
              finish.done.completeExceptionally(failure);
            }
          });
    }
    finish.await();
    return seconds(start);
  }

  private static double seconds(long start) {
    return (System.nanoTime() - start) / 1e9;
  }
}
