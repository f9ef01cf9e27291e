"""Rules of alerts and their receivers."""

from tests.mutation_cases.case import Mutation

MESSAGES = ("tests/service/test_alert_messages.py",)
MAILS = ("tests/service/test_alert_mails.py",)

CASES = (
    Mutation(
        "a name has line breaks and marks of direction",
        "app/service/alerts/messages.py",
        '    return unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn"}\n',
        "    return True\n",
        MESSAGES,
    ),
    Mutation(
        "a name is markup in Slack",
        "app/service/alerts/chat_messages.py",
        '    return {"type": "plain_text", "text": text[:most], "emoji": False}\n',
        '    return {"type": "mrkdwn", "text": text[:most]}\n',
        MESSAGES,
    ),
    Mutation(
        "the URL of a chat is shown",
        "app/ledger/alerts.py",
        "        if self.url is None or self.kind is ReceiverKind.WEBHOOK:\n",
        "        if True:\n",
        ("tests/service/test_alert_messages.py", "tests/api/test_receivers.py"),
    ),
    Mutation(
        "a refusal to relay disables receivers of mail",
        "app/service/alerts/mail_sender.py",
        "    gone = all(each.code >= _PERMANENT and not each.message.startswith(_POLICY) for each in recipients)\n",
        "    gone = all(each.code >= _PERMANENT for each in recipients)\n",
        MAILS,
    ),
    Mutation(
        "a repeated mail is another one",
        "app/service/alerts/mail_sender.py",
        '    mail["Message-ID"] = f"<{alert.id}@{domain}>"\n',
        '    mail["Message-ID"] = f"<{id(alert)}@{domain}>"\n',
        MAILS,
    ),
    Mutation(
        "a name is an encoded word in a subject",
        "app/service/alerts/mail_sender.py",
        '    return text.replace("=?", "= ?")\n',
        "    return text\n",
        MAILS,
    ),
    Mutation(
        "a decided proposal is announced to nobody",
        "app/service/change_control.py",
        "    alerts.add(tx, context.organisation_id, [proposal_decided_alert(tx, context, decided)])\n",
        "",
        ("tests/service/test_proposal_alerts.py",),
    ),
    Mutation(
        "deleting a receiver is not replayed",
        "app/service/verification/record_replay.py",
        '    records.get("receivers", {}).pop(entry.subject, None)\n',
        "    records.setdefault(entry.action, {})\n",
        ("tests/api/test_receivers.py",),
    ),
)
