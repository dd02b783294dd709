import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.ActiveMQSession;

/**
 * The rival of the benchmark: ActiveMQ's own Java client doing the same work. Run from its source by `java`.
 *
 * <p>Arguments: url user password queue mode count transaction-size body-bytes. Mode is publish, individual
 * or transacted. Prints one line: messages per second.
 */
public final class JavaClient {
  private static final long RECEIVE_MILLISECONDS = 20_000;

  public static void main(String[] arguments) throws Exception {
    String mode = arguments[4];
    int count = Integer.parseInt(arguments[5]);
    int transactionSize = Integer.parseInt(arguments[6]);
    int bodyBytes = Integer.parseInt(arguments[7]);
    ActiveMQConnectionFactory factory =
        new ActiveMQConnectionFactory(arguments[1], arguments[2], arguments[0]);
    factory.setWatchTopicAdvisories(false);
    try (Connection connection = factory.createConnection()) {
      connection.start();
      double seconds =
          switch (mode) {
            case "publish" -> publish(connection, arguments[3], count, transactionSize, bodyBytes);
            case "individual" -> individual(connection, arguments[3], count);
            case "transacted" -> transacted(connection, arguments[3], count, transactionSize);
            default -> throw new IllegalArgumentException("mode " + mode);
          };
      System.out.printf("%.1f%n", count / seconds);
    }
  }

  private static double publish(
      Connection connection, String name, int count, int transactionSize, int bodyBytes) throws Exception {
    Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
    Queue queue = session.createQueue(name);
    MessageProducer producer = session.createProducer(queue);
    producer.setDeliveryMode(DeliveryMode.PERSISTENT);
    byte[] body = new byte[bodyBytes];
    long start = System.nanoTime();
    for (int i = 0; i < count; i++) {
      BytesMessage message = session.createBytesMessage();
      message.writeBytes(body);
      message.setIntProperty("n", i);
      producer.send(message);
      if ((i + 1) % transactionSize == 0) {
        session.commit();
      }
    }
    session.commit();
    return seconds(start);
  }

  private static double individual(Connection connection, String name, int count) throws Exception {
    Session session = connection.createSession(false, ActiveMQSession.INDIVIDUAL_ACKNOWLEDGE);
    MessageConsumer consumer = session.createConsumer(session.createQueue(name));
    long start = System.nanoTime();
    for (int i = 0; i < count; i++) {
      next(consumer, i).acknowledge();
    }
    return seconds(start);
  }

  private static double transacted(Connection connection, String name, int count, int transactionSize)
      throws Exception {
    Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
    MessageConsumer consumer = session.createConsumer(session.createQueue(name));
    long start = System.nanoTime();
    for (int i = 0; i < count; i++) {
      next(consumer, i);
      if ((i + 1) % transactionSize == 0) {
        session.commit();
      }
    }
    session.commit();
    return seconds(start);
  }

  private static Message next(MessageConsumer consumer, int index) throws Exception {
    Message message = consumer.receive(RECEIVE_MILLISECONDS);
    if (message == null) {
      throw new IllegalStateException("no message after " + index);
    }
    return message;
  }

  private static double seconds(long start) {
    return (System.nanoTime() - start) / 1e9;
  }
}
